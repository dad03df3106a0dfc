#include <lockstep/kernels/batch_norm.hpp>

#include <cstdint>
#include <string_view>

#include <lockstep/kernels/detail/batch_norm_checks.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

using namespace batch_norm;

/// Does the checks that batch_norm_apply and batch_norm_apply_pair share. The type and the shape of `residual` are not
/// checked here, because the two ops have different requirements.
void check_apply(std::string_view op, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                 bool relu, const TensorView& y, const TensorView& mask) {
  check_input(op, x);
  require_tensor(op, {coefficients, "coefficients"}, accumulation_dtype(x.dtype), Shape{4, x.shape.back()});
  require_tensor(op, {y, "y"}, x.dtype, x.shape);
  check_mask(op, mask, x.numel());
  require<UsageError>(relu || !mask.given(), op, ": mask is given without relu, expected relu or no mask");
  check_apart(op, {{y, "y"}, {mask, "mask"}}, {{x, "x"}, {coefficients, "coefficients"}, {residual, "residual"}},
              {&x, &residual});
}

}  // namespace

std::size_t relu_mask_bytes(std::int64_t numel) {
  return static_cast<std::size_t>((numel + 31) / 32) * 4;
}

std::size_t batch_norm_workspace_bytes(const Context& context, const TensorView& x) {
  constexpr std::string_view kOp = "batch_norm_workspace_bytes";
  check_input(kOp, x);
  require_on(context.device(), kOp, {&x});
  return ask(context, kOp, LOCKSTEP_BACKEND(batch_norm_workspace_bytes, x));
}

void batch_norm_stats(Context& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_stats";
  require_on(context.device(), kOp, {&x, &valid, &stats, &workspace});
  check_input(kOp, x);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  check_workspace(kOp, context, x, workspace);
  check_apart(kOp, {{stats, "stats"}, {workspace, "workspace"}}, {{x, "x"}, {valid, "valid"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_stats, x, valid, stats, workspace));
}

void batch_norm_merge_stats(Context& context, const TensorView& parts, const TensorView& stats) {
  constexpr std::string_view kOp = "batch_norm_merge_stats";
  require_on(context.device(), kOp, {&parts, &stats});
  check_parameters(kOp, {parts, "parts"});
  require<ShapeError>(parts.shape.rank() == 2 && parts.shape[0] >= 1 && parts.shape[1] >= 3 && parts.shape[1] % 2 == 1,
                      kOp, ": parts is ", parts.shape, ", expected (P, 2C + 1) with P and C of at least 1");
  require_tensor(kOp, {parts, "parts"}, parts.dtype, Shape{parts.shape[0], parts.shape[1]});
  require_tensor(kOp, {stats, "stats"}, parts.dtype, Shape{parts.shape[1]});
  check_apart(kOp, {{stats, "stats"}}, {{parts, "parts"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_merge_stats, parts, stats));
}

void batch_norm_finalize(Context& context, const TensorView& stats, const TensorView& weight, const TensorView& bias,
                         double epsilon, double momentum, const TensorView& running_mean, const TensorView& running_var,
                         const TensorView& coefficients) {
  constexpr std::string_view kOp = "batch_norm_finalize";
  require_on(context.device(), kOp, {&stats, &weight, &bias, &running_mean, &running_var, &coefficients});
  check_parameters(kOp, {stats, "stats"});
  check_finalize(kOp, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
  check_apart(kOp, {{running_mean, "running_mean"}, {running_var, "running_var"}, {coefficients, "coefficients"}},
              {{stats, "stats"}, {weight, "weight"}, {bias, "bias"}});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_finalize, stats, weight, bias, epsilon, momentum, running_mean, running_var,
                            coefficients));
}

void batch_norm_coefficients(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                             const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                             const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_coefficients";
  require_on(context.device(), kOp,
             {&x, &valid, &weight, &bias, &stats, &running_mean, &running_var, &coefficients, &workspace});
  check_input(kOp, x);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  check_finalize(kOp, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
  check_workspace(kOp, context, x, workspace);
  check_apart(kOp,
              {{stats, "stats"},
               {running_mean, "running_mean"},
               {running_var, "running_var"},
               {coefficients, "coefficients"},
               {workspace, "workspace"}},
              {{x, "x"}, {valid, "valid"}, {weight, "weight"}, {bias, "bias"}});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_coefficients, x, valid, weight, bias, epsilon, momentum, stats, running_mean,
                            running_var, coefficients, workspace));
}

void batch_norm_finalize_inference(Context& context, const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& weight, const TensorView& bias, double epsilon,
                                   const TensorView& coefficients) {
  constexpr std::string_view kOp = "batch_norm_finalize_inference";
  require_on(context.device(), kOp, {&running_mean, &running_var, &weight, &bias, &coefficients});
  check_parameters(kOp, {weight, "weight"});
  require<ShapeError>(weight.shape.rank() == 1 && weight.shape[0] >= 1, kOp, ": weight is ", weight.shape,
                      ", expected (C)");
  const Shape channels = weight.shape;
  require_tensor(kOp, {weight, "weight"}, weight.dtype, channels);
  require_tensor(kOp, {bias, "bias"}, weight.dtype, channels);
  require_tensor(kOp, {running_mean, "running_mean"}, weight.dtype, channels);
  require_tensor(kOp, {running_var, "running_var"}, weight.dtype, channels);
  require_tensor(kOp, {coefficients, "coefficients"}, weight.dtype, Shape{4, channels[0]});
  require<UsageError>(epsilon > 0, kOp, ": epsilon is ", epsilon, ", expected more than 0");
  check_apart(kOp, {{coefficients, "coefficients"}},
              {{running_mean, "running_mean"}, {running_var, "running_var"}, {weight, "weight"}, {bias, "bias"}});
  dispatch(
      context, kOp,
      LOCKSTEP_BACKEND(batch_norm_finalize_inference, running_mean, running_var, weight, bias, epsilon, coefficients));
}

void batch_norm_apply(Context& context, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                      bool relu, const TensorView& y, const TensorView& mask) {
  constexpr std::string_view kOp = "batch_norm_apply";
  require_on(context.device(), kOp, {&x, &coefficients, &residual, &y, &mask});
  check_apply(kOp, x, coefficients, residual, relu, y, mask);
  require_tensor_if_given(kOp, {residual, "residual"}, x.dtype, x.shape);
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_apply, x, coefficients, residual, relu, y, mask));
}

void batch_norm_apply_pair(Context& context, const TensorView& x, const TensorView& coefficients,
                           const TensorView& residual, const TensorView& residual_coefficients, bool relu,
                           const TensorView& y, const TensorView& mask) {
  constexpr std::string_view kOp = "batch_norm_apply_pair";
  require_on(context.device(), kOp, {&x, &coefficients, &residual, &residual_coefficients, &y, &mask});
  check_apply(kOp, x, coefficients, residual, relu, y, mask);
  require_tensor(kOp, {residual, "residual"}, x.dtype, x.shape);
  require_tensor(kOp, {residual_coefficients, "residual_coefficients"}, accumulation_dtype(x.dtype),
                 Shape{4, x.shape.back()});
  check_apart(kOp, {{y, "y"}, {mask, "mask"}}, {{residual_coefficients, "residual_coefficients"}});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_apply_pair, x, coefficients, residual, residual_coefficients, relu, y, mask));
}

void batch_norm_backward_reduce(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                                const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                                GradMode mode, const TensorView& sums, const TensorView& dweight,
                                const TensorView& dbias, const TensorView& masked, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_backward_reduce";
  require_on(context.device(), kOp,
             {&dy, &dy2, &mask, &x, &coefficients, &valid, &sums, &dweight, &dbias, &masked, &workspace});
  check_backward(kOp, dy, dy2, mask, x, coefficients, valid, sums);
  check_gradients(kOp, mode, dweight, dbias, x);
  require_tensor_if_given(kOp, {masked, "masked"}, x.dtype, x.shape);
  check_workspace(kOp, context, x, workspace);
  const TensorView none;
  check_apart(kOp,
              {{sums, "sums"},
               {mode == GradMode::ignore ? none : dweight, "dweight"},
               {mode == GradMode::ignore ? none : dbias, "dbias"},
               {masked, "masked"},
               {workspace, "workspace"}},
              {{dy, "dy"}, {dy2, "dy2"}, {mask, "mask"}, {x, "x"}, {coefficients, "coefficients"}, {valid, "valid"}},
              {&dy, &dy2});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_backward_reduce, dy, dy2, mask, x, coefficients, valid, mode, sums, dweight,
                            dbias, masked, workspace));
}

void batch_norm_backward_apply(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& sums,
                               const TensorView& stats, const TensorView& valid, const TensorView& dx,
                               const TensorView& dresidual) {
  constexpr std::string_view kOp = "batch_norm_backward_apply";
  require_on(context.device(), kOp, {&dy, &dy2, &mask, &x, &coefficients, &sums, &stats, &valid, &dx, &dresidual});
  check_backward(kOp, dy, dy2, mask, x, coefficients, valid, sums);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  require_tensor(kOp, {dx, "dx"}, x.dtype, x.shape);
  require_tensor_if_given(kOp, {dresidual, "dresidual"}, x.dtype, x.shape);
  check_apart(kOp, {{dx, "dx"}, {dresidual, "dresidual"}},
              {{dy, "dy"},
               {dy2, "dy2"},
               {mask, "mask"},
               {x, "x"},
               {coefficients, "coefficients"},
               {sums, "sums"},
               {stats, "stats"},
               {valid, "valid"}},
              {&dy, &dy2});
  dispatch(
      context, kOp,
      LOCKSTEP_BACKEND(batch_norm_backward_apply, dy, dy2, mask, x, coefficients, sums, stats, valid, dx, dresidual));
}

void batch_norm_backward_reduce_pair(Context& context, const TensorView& dy, const TensorView& dy2,
                                     const TensorView& mask, const NormBackward& first, const NormBackward& second,
                                     const TensorView& valid, const TensorView& masked, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_backward_reduce_pair";
  require_on(context.device(), kOp, {&dy, &dy2, &mask, &valid, &masked, &workspace});
  check_input(kOp, first.x);
  require_tensor(kOp, {second.x, "x of the second norm"}, first.x.dtype, first.x.shape);
  for (const NormBackward* norm : {&first, &second}) {
    require_on(context.device(), kOp, {&norm->x, &norm->coefficients, &norm->sums, &norm->dweight, &norm->dbias});
    check_backward(kOp, dy, dy2, mask, norm->x, norm->coefficients, valid, norm->sums);
    check_gradients(kOp, norm->mode, norm->dweight, norm->dbias, norm->x);
  }
  require_tensor(kOp, {mask, "mask"}, DType::u8, Shape{static_cast<std::int64_t>(relu_mask_bytes(dy.numel()))});
  require_tensor(kOp, {masked, "masked"}, first.x.dtype, first.x.shape);
  check_workspace(kOp, context, first.x, workspace);
  check_apart(kOp,
              {{first.sums, "sums of the first norm"},
               {second.sums, "sums of the second norm"},
               {first.dweight, "dweight of the first norm"},
               {second.dweight, "dweight of the second norm"},
               {first.dbias, "dbias of the first norm"},
               {second.dbias, "dbias of the second norm"},
               {masked, "masked"},
               {workspace, "workspace"}},
              {{dy, "dy"},
               {dy2, "dy2"},
               {mask, "mask"},
               {first.x, "x of the first norm"},
               {second.x, "x of the second norm"},
               {first.coefficients, "coefficients of the first norm"},
               {second.coefficients, "coefficients of the second norm"},
               {valid, "valid"}},
              {&dy, &dy2});
  if (context.device().kind == DeviceKind::cpu) {
    batch_norm_backward_reduce(context, dy, dy2, mask, first.x, first.coefficients, valid, first.mode, first.sums,
                               first.dweight, first.dbias, masked, workspace);
    batch_norm_backward_reduce(context, masked, {}, {}, second.x, second.coefficients, valid, second.mode, second.sums,
                               second.dweight, second.dbias, {}, workspace);
    return;
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_backward_reduce_pair, dy, dy2, mask, first, second, valid, masked, workspace));
}

void batch_norm_backward_apply_pair(Context& context, const TensorView& g, const NormBackward& first,
                                    const NormBackward& second, const TensorView& stats, const TensorView& valid) {
  constexpr std::string_view kOp = "batch_norm_backward_apply_pair";
  require_on(context.device(), kOp, {&g, &stats, &valid});
  check_input(kOp, first.x);
  require_tensor(kOp, {second.x, "x of the second norm"}, first.x.dtype, first.x.shape);
  for (const NormBackward* norm : {&first, &second}) {
    require_on(context.device(), kOp, {&norm->x, &norm->coefficients, &norm->sums, &norm->dx});
    check_backward(kOp, g, {}, {}, norm->x, norm->coefficients, valid, norm->sums);
    require_tensor(kOp, {norm->dx, "dx"}, norm->x.dtype, norm->x.shape);
  }
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(first.x.dtype), Shape{2 * first.x.shape.back() + 1});
  check_apart(kOp, {{first.dx, "dx of the first norm"}, {second.dx, "dx of the second norm"}},
              {{g, "g"},
               {first.x, "x of the first norm"},
               {second.x, "x of the second norm"},
               {first.coefficients, "coefficients of the first norm"},
               {second.coefficients, "coefficients of the second norm"},
               {first.sums, "sums of the first norm"},
               {second.sums, "sums of the second norm"},
               {stats, "stats"},
               {valid, "valid"}},
              {&g});
  if (context.device().kind == DeviceKind::cpu) {
    const bool in_place = first.dx.data == g.data;  // if true, the first norm overwrites g and must run last
    for (const NormBackward* norm : {in_place ? &second : &first, in_place ? &first : &second}) {
      batch_norm_backward_apply(context, g, {}, {}, norm->x, norm->coefficients, norm->sums, stats, valid, norm->dx,
                                {});
    }
    return;
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_backward_apply_pair, g, first, second, stats, valid));
}

}  // namespace lockstep::ops

#include <lockstep/kernels/batch_norm.hpp>

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;  // of the workspace

void check_input(std::string_view op, const TensorView& x) {
  require_compute_dtype(op, "x", x);
  require<ShapeError>(x.shape.rank() >= 2 && x.shape.back() >= 1, op, ": x is ", x.shape,
                      ", expected (N, ..., C) with at least one channel");
  require<ShapeError>(x.is_contiguous(), op, ": x ", x.shape, " with strides ", x.strides, " is not contiguous");
}

/// Checks the type of statistics or parameters in an op that takes no tensor: f32, on the host also f64.
void check_parameters(std::string_view op, const Operand& operand) {
  const auto& [view, name] = operand;
  require_compute_dtype(op, name, view);
  require<DTypeError>(view.dtype == accumulation_dtype(view.dtype), op, ": ", name, " is ", view.dtype, ", expected ",
                      accumulation_dtype(view.dtype));
}

void check_given(std::string_view op, const Operand& operand, DType dtype, const Shape& shape) {
  if (operand.view.given()) {
    require_tensor(op, operand, dtype, shape);
  }
}

void check_valid(std::string_view op, const TensorView& valid) {
  if (valid.given()) {
    require_scalar(op, {valid, "valid"}, DType::i64);
  }
}

void check_mask(std::string_view op, const TensorView& mask, std::int64_t numel) {
  if (mask.given()) {
    require_tensor(op, {mask, "mask"}, DType::u8, Shape{static_cast<std::int64_t>(relu_mask_bytes(numel))});
  }
}

void check_workspace(std::string_view op, const Context& context, const TensorView& x, const TensorView& workspace) {
  require_workspace(op, workspace, batch_norm_workspace_bytes(context, x), kWorkspaceAlignment);
}

/// The checks that both backward ops share.
void check_backward(std::string_view op, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                    const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                    const TensorView& sums) {
  check_input(op, x);
  const DType parameters = accumulation_dtype(x.dtype);
  require_tensor(op, {dy, "dy"}, x.dtype, x.shape);
  check_given(op, {dy2, "dy2"}, x.dtype, x.shape);
  check_mask(op, mask, x.numel());
  require_tensor(op, {coefficients, "coefficients"}, parameters, Shape{4, x.shape.back()});
  check_valid(op, valid);
  require_tensor(op, {sums, "sums"}, parameters, Shape{2, x.shape.back()});
}

/// Both gradients of parameters, unless they are ignored.
void check_gradients(std::string_view op, GradMode mode, const TensorView& dweight, const TensorView& dbias,
                     const TensorView& x) {
  if (mode != GradMode::ignore) {
    require_tensor(op, {dweight, "dweight"}, accumulation_dtype(x.dtype), Shape{x.shape.back()});
    require_tensor(op, {dbias, "dbias"}, accumulation_dtype(x.dtype), Shape{x.shape.back()});
  }
}

/// What batch_norm_finalize and batch_norm_coefficients demand beyond the type of stats.
void check_finalize(std::string_view op, const TensorView& stats, const TensorView& weight, const TensorView& bias,
                    double epsilon, double momentum, const TensorView& running_mean, const TensorView& running_var,
                    const TensorView& coefficients) {
  require<ShapeError>(weight.shape.rank() == 1 && weight.shape[0] >= 1, op, ": weight is ", weight.shape,
                      ", expected (C)");
  const std::int64_t channels = weight.shape[0];
  require_tensor(op, {stats, "stats"}, stats.dtype, Shape{2 * channels + 1});
  require_tensor(op, {weight, "weight"}, stats.dtype, Shape{channels});
  require_tensor(op, {bias, "bias"}, stats.dtype, Shape{channels});
  require_tensor(op, {coefficients, "coefficients"}, stats.dtype, Shape{4, channels});
  require<ShapeError>(running_mean.given() == running_var.given(), op, ": running_mean is ",
                      running_mean.given() ? "given" : "missing", ", running_var is not so");
  check_given(op, {running_mean, "running_mean"}, stats.dtype, Shape{channels});
  check_given(op, {running_var, "running_var"}, stats.dtype, Shape{channels});
  require<UsageError>(epsilon > 0, op, ": epsilon is ", epsilon, ", expected more than 0");
  require<UsageError>(momentum >= 0 && momentum <= 1, op, ": momentum is ", momentum, ", expected 0 to 1");
}

/// No output may share memory with an input or with another output, unless it is exactly one of `in_place`.
void check_apart(std::string_view op, std::initializer_list<Operand> outputs, std::initializer_list<Operand> inputs,
                 std::initializer_list<const TensorView*> in_place = {}) {
  const auto shared = [](const TensorView& a, const TensorView& b) {
    return a.given() && b.given() && a.data != nullptr && b.data != nullptr && overlaps(a, b);
  };
  for (const Operand* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const Operand* other = outputs.begin(); other != out; ++other) {
      require<ShapeError>(!shared(out->view, other->view), op, ": ", out->name, " overlaps ", other->name);
    }
    for (const Operand& in : inputs) {
      bool allowed = false;
      for (const TensorView* view : in_place) {
        allowed = allowed || (&in.view == view && out->view.shape == view->shape && out->view.data == view->data);
      }
      require<ShapeError>(allowed || !shared(out->view, in.view), op, ": ", out->name, " overlaps ", in.name);
    }
  }
}

/// The checks that both apply ops share; those of the residual alone follow.
void check_apply(std::string_view op, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                 bool relu, const TensorView& y, const TensorView& mask) {
  check_input(op, x);
  require_tensor(op, {coefficients, "coefficients"}, accumulation_dtype(x.dtype), Shape{4, x.shape.back()});
  require_tensor(op, {y, "y"}, x.dtype, x.shape);
  check_mask(op, mask, x.numel());
  require<UsageError>(relu || !mask.given(), op, ": mask is given without relu");
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
  return ask(context, kOp, [&](const auto& c) -> decltype(backend::batch_norm_workspace_bytes(c, x)) {
    return backend::batch_norm_workspace_bytes(c, x);
  });
}

void batch_norm_stats(Context& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_stats";
  require_on(context.device(), kOp, {&x, &valid, &stats, &workspace});
  check_input(kOp, x);
  check_valid(kOp, valid);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  check_workspace(kOp, context, x, workspace);
  check_apart(kOp, {{stats, "stats"}, {workspace, "workspace"}}, {{x, "x"}, {valid, "valid"}});
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::batch_norm_stats(c, x, valid, stats, workspace)) {
    backend::batch_norm_stats(c, x, valid, stats, workspace);
  });
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
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::batch_norm_merge_stats(c, parts, stats)) {
    backend::batch_norm_merge_stats(c, parts, stats);
  });
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
           [=](auto& c) -> decltype(backend::batch_norm_finalize(c, stats, weight, bias, epsilon, momentum,
                                                                 running_mean, running_var, coefficients)) {
             backend::batch_norm_finalize(c, stats, weight, bias, epsilon, momentum, running_mean, running_var,
                                          coefficients);
           });
}

void batch_norm_coefficients(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                             const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                             const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_coefficients";
  require_on(context.device(), kOp,
             {&x, &valid, &weight, &bias, &stats, &running_mean, &running_var, &coefficients, &workspace});
  check_input(kOp, x);
  check_valid(kOp, valid);
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
  dispatch(
      context, kOp,
      [=](auto& c) -> decltype(backend::batch_norm_coefficients(c, x, valid, weight, bias, epsilon, momentum, stats,
                                                                running_mean, running_var, coefficients, workspace)) {
        backend::batch_norm_coefficients(c, x, valid, weight, bias, epsilon, momentum, stats, running_mean, running_var,
                                         coefficients, workspace);
      });
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
  dispatch(context, kOp,
           [=](auto& c) -> decltype(backend::batch_norm_finalize_inference(c, running_mean, running_var, weight, bias,
                                                                           epsilon, coefficients)) {
             backend::batch_norm_finalize_inference(c, running_mean, running_var, weight, bias, epsilon, coefficients);
           });
}

void batch_norm_apply(Context& context, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                      bool relu, const TensorView& y, const TensorView& mask) {
  constexpr std::string_view kOp = "batch_norm_apply";
  require_on(context.device(), kOp, {&x, &coefficients, &residual, &y, &mask});
  check_apply(kOp, x, coefficients, residual, relu, y, mask);
  check_given(kOp, {residual, "residual"}, x.dtype, x.shape);
  dispatch(context, kOp,
           [=](auto& c) -> decltype(backend::batch_norm_apply(c, x, coefficients, residual, relu, y, mask)) {
             backend::batch_norm_apply(c, x, coefficients, residual, relu, y, mask);
           });
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
           [=](auto& c) -> decltype(backend::batch_norm_apply_pair(c, x, coefficients, residual, residual_coefficients,
                                                                   relu, y, mask)) {
             backend::batch_norm_apply_pair(c, x, coefficients, residual, residual_coefficients, relu, y, mask);
           });
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
  check_given(kOp, {masked, "masked"}, x.dtype, x.shape);
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
           [=](auto& c) -> decltype(backend::batch_norm_backward_reduce(c, dy, dy2, mask, x, coefficients, valid, mode,
                                                                        sums, dweight, dbias, masked, workspace)) {
             backend::batch_norm_backward_reduce(c, dy, dy2, mask, x, coefficients, valid, mode, sums, dweight, dbias,
                                                 masked, workspace);
           });
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
  check_given(kOp, {dresidual, "dresidual"}, x.dtype, x.shape);
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
  dispatch(context, kOp,
           [=](auto& c) -> decltype(backend::batch_norm_backward_apply(c, dy, dy2, mask, x, coefficients, sums, stats,
                                                                       valid, dx, dresidual)) {
             backend::batch_norm_backward_apply(c, dy, dy2, mask, x, coefficients, sums, stats, valid, dx, dresidual);
           });
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
           [=](auto& c) -> decltype(backend::batch_norm_backward_reduce_pair(c, dy, dy2, mask, first, second, valid,
                                                                             masked, workspace)) {
             backend::batch_norm_backward_reduce_pair(c, dy, dy2, mask, first, second, valid, masked, workspace);
           });
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
    const bool in_place = first.dx.data == g.data;  // then the other norm reads g before
    for (const NormBackward* norm : {in_place ? &second : &first, in_place ? &first : &second}) {
      batch_norm_backward_apply(context, g, {}, {}, norm->x, norm->coefficients, norm->sums, stats, valid, norm->dx,
                                {});
    }
    return;
  }
  dispatch(context, kOp,
           [=](auto& c) -> decltype(backend::batch_norm_backward_apply_pair(c, g, first, second, stats, valid)) {
             backend::batch_norm_backward_apply_pair(c, g, first, second, stats, valid);
           });
}

}  // namespace lockstep::ops

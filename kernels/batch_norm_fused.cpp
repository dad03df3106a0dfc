#include <lockstep/kernels/batch_norm_fused.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <lockstep/kernels/detail/batch_norm_checks.hpp>
#include <lockstep/kernels/detail/batch_norm_tiling.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

using namespace batch_norm;

bool batch_norm_fits(const Context& context, const TensorView& x, NormPass pass) {
  constexpr std::string_view kOp = "batch_norm_fits";
  check_input(kOp, x);
  require_on(context.device(), kOp, {&x});
  return ask(context, kOp, LOCKSTEP_BACKEND(batch_norm_fits, x, pass));
}

bool batch_norm_fits_chip(const ChipMemory& chip, const TensorView& x, NormPass pass) {
  check_input("batch_norm_fits_chip", x);
  const std::int64_t channels = x.shape.back();
  const int per_column = 16 / static_cast<int>(size_of(x.dtype));
  const Tiling tiling(x.numel() / channels, channels, channels % per_column == 0 ? per_column : 1);
  const auto resident = [&](std::size_t bytes) {
    constexpr std::size_t kOwn = std::size_t{25} * 1024;
    return chip.multiprocessors *
           static_cast<std::int64_t>(std::min<std::size_t>(2, chip.shared_bytes / (bytes + kOwn)));
  };
  return fused_residence(tiling, per_column, pass == NormPass::forward ? 1 : 2, resident).blocks > 0;
}

void batch_norm_fused_forward(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                              const TensorView& bias, double epsilon, double momentum, const TensorView& residual,
                              bool relu, const TensorView& stats, const TensorView& running_mean,
                              const TensorView& running_var, const TensorView& coefficients, const TensorView& y,
                              const TensorView& mask, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_fused_forward";
  require_on(context.device(), kOp,
             {&x, &valid, &weight, &bias, &residual, &stats, &running_mean, &running_var, &coefficients, &y, &mask,
              &workspace});
  check_input(kOp, x);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  check_finalize(kOp, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
  require_tensor_if_given(kOp, {residual, "residual"}, x.dtype, x.shape);
  require_tensor(kOp, {y, "y"}, x.dtype, x.shape);
  check_mask(kOp, mask, x.numel());
  require<UsageError>(relu || !mask.given(), kOp, ": mask is given without relu, expected relu or no mask");
  check_workspace(kOp, context, x, workspace);
  check_apart(kOp,
              {{stats, "stats"},
               {running_mean, "running_mean"},
               {running_var, "running_var"},
               {coefficients, "coefficients"},
               {y, "y"},
               {mask, "mask"},
               {workspace, "workspace"}},
              {{x, "x"}, {valid, "valid"}, {weight, "weight"}, {bias, "bias"}, {residual, "residual"}},
              {&x, &residual});
  if (context.device().kind == DeviceKind::cpu) {
    batch_norm_coefficients(context, x, valid, weight, bias, epsilon, momentum, stats, running_mean, running_var,
                            coefficients, workspace);
    batch_norm_apply(context, x, coefficients, residual, relu, y, mask);
    return;
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_fused_forward, x, valid, weight, bias, epsilon, momentum, residual, relu, stats,
                            running_mean, running_var, coefficients, y, mask, workspace));
}

void batch_norm_fused_backward(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& stats,
                               const TensorView& valid, GradMode mode, const TensorView& sums,
                               const TensorView& dweight, const TensorView& dbias, const TensorView& masked,
                               const TensorView& dx, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_fused_backward";
  require_on(context.device(), kOp,
             {&dy, &dy2, &mask, &x, &coefficients, &stats, &valid, &sums, &dweight, &dbias, &masked, &dx, &workspace});
  check_backward(kOp, dy, dy2, mask, x, coefficients, valid, sums);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape.back() + 1});
  check_gradients(kOp, mode, dweight, dbias, x);
  require_tensor_if_given(kOp, {masked, "masked"}, x.dtype, x.shape);
  require<UsageError>(masked.given() || !dy2.given(), kOp,
                      ": dy2 is given without masked, expected both or only masked");
  require_tensor(kOp, {dx, "dx"}, x.dtype, x.shape);
  check_workspace(kOp, context, x, workspace);
  const TensorView none;
  check_apart(kOp,
              {{sums, "sums"},
               {mode == GradMode::ignore ? none : dweight, "dweight"},
               {mode == GradMode::ignore ? none : dbias, "dbias"},
               {masked, "masked"},
               {dx, "dx"},
               {workspace, "workspace"}},
              {{dy, "dy"},
               {dy2, "dy2"},
               {mask, "mask"},
               {x, "x"},
               {coefficients, "coefficients"},
               {stats, "stats"},
               {valid, "valid"}},
              {&dy, &dy2});
  if (context.device().kind == DeviceKind::cpu) {
    batch_norm_backward_reduce(context, dy, dy2, mask, x, coefficients, valid, mode, sums, dweight, dbias, masked,
                               workspace);
    batch_norm_backward_apply(context, masked.given() ? masked : dy, {}, masked.given() ? none : mask, x, coefficients,
                              sums, stats, valid, dx, {});
    return;
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_fused_backward, dy, dy2, mask, x, coefficients, stats, valid, mode, sums,
                            dweight, dbias, masked, dx, workspace));
}

}  // namespace lockstep::ops

#include <lockstep/kernels/weight_sum.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops {

std::size_t weight_sum_workspace_bytes(const Context& context, const TensorView& weights) {
  return sum_workspace_bytes(context, weights);
}

void weight_sum(Context& context, const TensorView& weights, const TensorView& valid, const TensorView& scale,
                GradMode mode, const TensorView& sum, const TensorView& total, const TensorView& workspace) {
  constexpr std::string_view kOp = "weight_sum";
  require_on(context.device(), kOp, {&weights, &valid, &scale, &sum, &total, &workspace});
  require<ShapeError>(weights.given(), kOp, ": weights are not given, expected a tensor");
  require_alike(kOp, {{weights, "weights"}});
  require<DTypeError>(weights.dtype == accumulation_dtype(weights.dtype), kOp, ": weights are ", weights.dtype,
                      ", expected ", accumulation_dtype(weights.dtype));
  const Shape& shape = weights.shape;
  require<ShapeError>(shape.rank() >= 1 && (shape[0] == 0 || weights.numel() > 0), kOp, ": weights are ", shape,
                      ", expected (N, ...) with a weight for each sample");
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_scalar_if_given(kOp, {scale, "scale"}, weights.dtype);
  require<UsageError>(sum.given() == (mode != GradMode::ignore), kOp,
                      sum.given() ? ": sum is given with mode ignore, expected none, or another mode"
                                  : ": sum is not given, expected a tensor, or mode ignore");
  if (sum.given()) {
    require_scalar(kOp, {sum, "sum"}, weights.dtype);
    require_apart(kOp, {sum, "sum"}, {{weights, "weights"}, {valid, "valid"}, {scale, "scale"}});
  }
  if (total.given()) {
    require_scalar(kOp, {total, "total"}, DType::f64);
    require_apart(kOp, {total, "total"}, {{weights, "weights"}, {valid, "valid"}, {scale, "scale"}, {sum, "sum"}});
  }
  if (const std::size_t bytes = weight_sum_workspace_bytes(context, weights); bytes > 0) {
    require_workspace(kOp, workspace, bytes, alignof(double));
    require_apart(kOp, {workspace, "workspace"},
                  {{weights, "weights"}, {valid, "valid"}, {scale, "scale"}, {sum, "sum"}, {total, "total"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(weight_sum, weights, valid, scale, mode, sum, total, workspace));
}

}  // namespace lockstep::ops

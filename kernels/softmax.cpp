#include <lockstep/kernels/softmax.hpp>

#include <cmath>
#include <limits>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Throws UsageError for a `scale` that is 0, infinite, NaN or subnormal: 0 times infinity could turn numbers into NaN.
void check_scale(std::string_view op, double scale, DType dtype) {
  visit_compute(accumulation_dtype(dtype), op, [&]<class T>(std::type_identity<T>) {
    using Limits = std::numeric_limits<T>;
    require<UsageError>(std::abs(scale) >= Limits::min() && std::abs(scale) <= Limits::max(), op, ": scale is ", scale,
                        ", expected a normal number of type ", accumulation_dtype(dtype));
  });
}

}  // namespace

void softmax_forward(Context& context, const TensorView& x, double scale, SoftmaxMask mask, const TensorView& y) {
  constexpr std::string_view kOp = "softmax_forward";
  require_on(context.device(), kOp, {&x, &y});
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require<ShapeError>(x.shape.rank() >= 1, kOp, ": x is ", x.shape, ", expected (..., K)");
  require_same_or_apart(kOp, {y, "y"}, {x, "x"});
  require<UsageError>(mask == SoftmaxMask::none || mask == SoftmaxMask::causal, kOp, ": mask is ",
                      static_cast<int>(mask), ", expected a number of enum SoftmaxMask");
  if (mask == SoftmaxMask::causal) {
    require<ShapeError>(x.shape.rank() >= 2 && x.shape[x.shape.rank() - 2] <= x.shape.back(), kOp, ": x is ", x.shape,
                        ", expected (..., T, K) with K at least T for a causal mask");
  }
  check_scale(kOp, scale, x.dtype);
  dispatch(context, kOp, LOCKSTEP_BACKEND(softmax_forward, x, scale, mask, y));
}

void softmax_backward(Context& context, const TensorView& y, const TensorView& dy, double scale, const TensorView& dx) {
  constexpr std::string_view kOp = "softmax_backward";
  require_on(context.device(), kOp, {&y, &dy, &dx});
  require_alike(kOp, {{y, "y"}, {dy, "dy"}, {dx, "dx"}});
  require<ShapeError>(y.shape.rank() >= 1, kOp, ": y is ", y.shape, ", expected (..., K)");
  require_same_or_apart(kOp, {dx, "dx"}, {dy, "dy"});
  require_same_or_apart(kOp, {dx, "dx"}, {y, "y"});
  check_scale(kOp, scale, y.dtype);
  dispatch(context, kOp, LOCKSTEP_BACKEND(softmax_backward, y, dy, scale, dx));
}

}  // namespace lockstep::ops

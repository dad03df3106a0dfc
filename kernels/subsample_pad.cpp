#include <lockstep/kernels/subsample_pad.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Checks `large` (x or dx: input resolution, C channels) and `small` (y or dy: output resolution, K channels).
void check(std::string_view op, std::int64_t stride, const TensorView& large, std::string_view large_name,
           const TensorView& small, std::string_view small_name) {
  require_images(op, {large, large_name});
  require<UsageError>(stride >= 1, op, ": stride is ", stride, ", expected at least 1");
  require<ShapeError>(small.shape.rank() == 4, op, ": ", small_name, " is ", small.shape, ", expected (N, P, Q, K)");
  Shape expected = large.shape;
  for (const int axis : {1, 2}) {
    expected[axis] = large.shape[axis] / stride + (large.shape[axis] % stride != 0 ? 1 : 0);
  }
  expected[3] = small.shape[3];
  require_tensor(op, {small, small_name}, large.dtype, expected);
  require<ShapeError>(small.shape[3] >= large.shape[3], op, ": ", small_name, " has ", small.shape[3],
                      " channels, expected at least the ", large.shape[3], " of ", large_name);
  require_apart(op, {large, large_name}, {{small, small_name}});
}

}  // namespace

void subsample_pad_forward(Context& context, std::int64_t stride, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "subsample_pad_forward", {&x, &y});
  check("subsample_pad_forward", stride, x, "x", y, "y");
  dispatch(context, "subsample_pad_forward", LOCKSTEP_BACKEND(subsample_pad_forward, stride, x, y));
}

void subsample_pad_backward(Context& context, std::int64_t stride, const TensorView& dy, GradMode mode,
                            const TensorView& dx) {
  if (mode == GradMode::ignore) {
    return;
  }
  require_on(context.device(), "subsample_pad_backward", {&dy, &dx});
  check("subsample_pad_backward", stride, dx, "dx", dy, "dy");
  dispatch(context, "subsample_pad_backward", LOCKSTEP_BACKEND(subsample_pad_backward, stride, dy, mode, dx));
}

}  // namespace lockstep::ops

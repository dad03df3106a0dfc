#include <lockstep/kernels/average_pool2d.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Checks the operands of a global pool. `mean` has one value for each image and channel.
void check_mean(std::string_view op, const Operand& images, const Operand& mean) {
  require_images(op, images);
  const Shape& shape = images.view.shape;
  require<ShapeError>(shape[1] >= 1 && shape[2] >= 1, op, ": ", images.name, " is ", shape,
                      ", expected at least one pixel to take the mean of");
  require_tensor(op, mean, images.view.dtype, Shape{shape[0], shape[3]});
}

}  // namespace

void average_pool2d_forward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& x,
                            const TensorView& y) {
  constexpr std::string_view kOp = "average_pool2d_forward";
  require_on(context.device(), kOp, {&x, &y});
  require_images(kOp, {x, "x"});
  require_tensor(kOp, {y, "y"}, x.dtype, pooled_shape(desc, x.shape));
  require_apart(kOp, {y, "y"}, {{x, "x"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(average_pool2d_forward, desc, over, x, y));
}

void average_pool2d_backward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& dy,
                             const TensorView& dx) {
  constexpr std::string_view kOp = "average_pool2d_backward";
  require_on(context.device(), kOp, {&dy, &dx});
  require_images(kOp, {dx, "dx"});
  require_tensor(kOp, {dy, "dy"}, dx.dtype, pooled_shape(desc, dx.shape));
  require_apart(kOp, {dx, "dx"}, {{dy, "dy"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(average_pool2d_backward, desc, over, dy, dx));
}

void global_average_pool_forward(Context& context, const TensorView& x, const TensorView& y) {
  constexpr std::string_view kOp = "global_average_pool_forward";
  require_on(context.device(), kOp, {&x, &y});
  check_mean(kOp, {x, "x"}, {y, "y"});
  require_apart(kOp, {y, "y"}, {{x, "x"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(global_average_pool_forward, x, y));
}

void global_average_pool_backward(Context& context, const TensorView& dy, const TensorView& dx) {
  constexpr std::string_view kOp = "global_average_pool_backward";
  require_on(context.device(), kOp, {&dy, &dx});
  check_mean(kOp, {dx, "dx"}, {dy, "dy"});
  require_apart(kOp, {dx, "dx"}, {{dy, "dy"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(global_average_pool_backward, dy, dx));
}

}  // namespace lockstep::ops

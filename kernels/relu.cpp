#include <lockstep/kernels/relu.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void relu_forward(Context& context, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "relu_forward", {&x, &y});
  require_alike("relu_forward", {{x, "x"}, {y, "y"}});
  require_same_or_apart("relu_forward", {y, "y"}, {x, "x"});
  dispatch(context, "relu_forward", LOCKSTEP_BACKEND(relu_forward, x, y));
}

void relu_backward(Context& context, const TensorView& y, const TensorView& dy, const TensorView& dx) {
  require_on(context.device(), "relu_backward", {&y, &dy, &dx});
  require_alike("relu_backward", {{y, "y"}, {dy, "dy"}, {dx, "dx"}});
  require_same_or_apart("relu_backward", {dx, "dx"}, {dy, "dy"});
  require<ShapeError>(!overlaps(dx, y), "relu_backward: dx overlaps y, expected memory of its own for each");
  dispatch(context, "relu_backward", LOCKSTEP_BACKEND(relu_backward, y, dy, dx));
}

}  // namespace lockstep::ops

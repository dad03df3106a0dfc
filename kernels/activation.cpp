#include <lockstep/kernels/activation.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

std::string_view name_of(Activation kind) {
  switch (kind) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::tanh:
      return "tanh";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::relu:
      return "relu";
    case Activation::identity:
      return "identity";
  }
  throw UsageError(concat("activation: kind is ", static_cast<int>(kind), ", expected one of enum Activation"));
}

void activation_forward(Context& context, Activation kind, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "activation_forward", {&x, &y});
  require_alike("activation_forward", {{x, "x"}, {y, "y"}});
  require_same_or_apart("activation_forward", {y, "y"}, {x, "x"});
  static_cast<void>(name_of(kind));  // UsageError for a value that is none
  dispatch(context, "activation_forward", [=](auto& c) -> decltype(backend::activation_forward(c, kind, x, y)) {
    backend::activation_forward(c, kind, x, y);
  });
}

void activation_backward(Context& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  require_on(context.device(), "activation_backward", {&x, &dy, &dx});
  require_alike("activation_backward", {{x, "x"}, {dy, "dy"}, {dx, "dx"}});
  require_same_or_apart("activation_backward", {dx, "dx"}, {dy, "dy"});
  require_same_or_apart("activation_backward", {dx, "dx"}, {x, "x"});
  static_cast<void>(name_of(kind));
  dispatch(context, "activation_backward", [=](auto& c) -> decltype(backend::activation_backward(c, kind, x, dy, dx)) {
    backend::activation_backward(c, kind, x, dy, dx);
  });
}

}  // namespace lockstep::ops

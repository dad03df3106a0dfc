#include <lockstep/kernels/activation.hpp>

#include <iterator>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

std::string_view name_of(Activation kind) {
  static constexpr std::string_view kNames[] = {"gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu", "identity"};
  const auto number = static_cast<std::size_t>(kind);
  require<UsageError>(number < std::size(kNames), "activation: kind is ", number, ", expected 0 (", kNames[0], ") to ",
                      std::size(kNames) - 1, " (", *std::rbegin(kNames), ')');
  return kNames[number];
}

void activation_forward(Context& context, Activation kind, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "activation_forward", {&x, &y});
  require_alike("activation_forward", {{x, "x"}, {y, "y"}});
  require_same_or_apart("activation_forward", {y, "y"}, {x, "x"});
  static_cast<void>(name_of(kind));  // throws UsageError if `kind` is no Activation
  dispatch(context, "activation_forward", LOCKSTEP_BACKEND(activation_forward, kind, x, y));
}

void activation_backward(Context& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  require_on(context.device(), "activation_backward", {&x, &dy, &dx});
  require_alike("activation_backward", {{x, "x"}, {dy, "dy"}, {dx, "dx"}});
  require_same_or_apart("activation_backward", {dx, "dx"}, {dy, "dy"});
  require_same_or_apart("activation_backward", {dx, "dx"}, {x, "x"});
  static_cast<void>(name_of(kind));
  dispatch(context, "activation_backward", LOCKSTEP_BACKEND(activation_backward, kind, x, dy, dx));
}

}  // namespace lockstep::ops

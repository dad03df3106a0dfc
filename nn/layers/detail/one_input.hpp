#pragma once

#include <string>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

// Functions for all layers that have one input.

/// Returns a slot for an output of the input's shape. The output takes the input's memory if nothing reads the input
/// later. If `reads_input` is true, backward reads the input, so a training plan keeps the input's memory.
[[nodiscard]] inline SlotId output_like_input(PlanBuilder& builder, const std::string& name, bool reads_input) {
  const Shape shape = builder.batched(builder.input_shape());
  const bool in_place = builder.may_overwrite_input() && !(reads_input && builder.training());
  return in_place ? builder.alias(builder.input(), name, shape) : builder.activation(name, shape);
}

/// Calls append(builder, dy, dx) in backward if the gradient of the input is wanted. If `in_place` is true, dx may take
/// the memory of dy.
template <class Append>
void on_input_gradient(PlanBuilder& builder, bool in_place, Append append) {
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, in_place ? dy : SlotId{}, false);
    if (dx.wanted()) {
      append(b, dy, dx.slot);
    }
  });
}

/// If the plan computes tangents (forward-mode derivatives), calls append(builder, t, to). This function must append
/// the calls that compute the tangent `to` of the layer's output from the tangent `t` of its input. For a linear layer
/// without bias, these calls are the same as in forward.
template <class Append>
void on_input_tangent(PlanBuilder& builder, Append append) {
  builder.on_tangent([=](PlanBuilder& b) {
    const SlotId t = b.input_tangent();
    append(b, t, b.new_tangent());
  });
}

/// Plans the input's gradient and the output's tangent with one function, for a layer whose Jacobian is symmetric (for
/// example diagonal). append(builder, g, to) appends the calls that compute dx from dy, or the tangent of the output
/// from the tangent of the input. dx may take the memory of dy.
template <class Append>
void on_symmetric_gradient(PlanBuilder& builder, Append append) {
  on_input_gradient(builder, /*in_place=*/true, append);
  on_input_tangent(builder, append);
}

}  // namespace lockstep::nn

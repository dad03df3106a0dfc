#pragma once

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

/// Functions that append the calls of a plan before the model's layers and after them.
namespace lockstep::nn {

/// Appends the call that augments and normalises images, if the model's input is images; otherwise appends no such
/// call. Returns the first layer's input.
[[nodiscard]] SlotId plan_input(PlanBuilder& builder, const Model& model);

/// Appends the calls of loss, accuracy and, when training, the gradient of the output. The gradient overwrites the
/// output unless the last layer's backward reads the output. Returns the gradient, or an invalid slot in evaluation.
[[nodiscard]] SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output);

}  // namespace lockstep::nn

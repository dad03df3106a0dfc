#pragma once

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

/// The calls of a plan before the model's layers and after them.
namespace lockstep::nn {

/// Appends the calls that decode and normalise images, or takes the input unchanged. Returns the first layer's input.
[[nodiscard]] SlotId plan_input(PlanBuilder& builder, const Model& model);

/// Appends loss, accuracy and, when training, the gradient of the output, which overwrites the output unless the last
/// layer reads it again. Returns that gradient; an invalid slot in evaluation.
[[nodiscard]] SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output);

}  // namespace lockstep::nn

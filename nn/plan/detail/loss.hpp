#pragma once

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

/// Functions that append a plan's first call (the input's augmentation) and the loss calls after the model's layers.
namespace lockstep::nn {

/// Appends the call that augments and normalises the input, if the model reads images. Returns the slot that the first
/// layer reads.
[[nodiscard]] SlotId plan_input(PlanBuilder& builder, const Model& model);

/// Appends the calls that compute the loss, the accuracy and, in training, the gradient of the output. The gradient
/// overwrites the output unless the last layer's backward reads the output. Returns the slot of the gradient, or an
/// invalid slot in evaluation.
[[nodiscard]] SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output);

}  // namespace lockstep::nn

#pragma once

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

/// What a plan computes in front of the model's layers and behind them.
namespace lockstep::nn {

/// Appends what decodes and normalises images, or takes the input as it is. Returns what the first layer reads.
[[nodiscard]] SlotId plan_input(PlanBuilder& builder, const Model& model);

/// Appends loss, accuracy and, when training, the gradient of the output, which takes its place unless the last layer
/// reads it again. Returns that gradient; an invalid slot in evaluation.
[[nodiscard]] SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output);

}  // namespace lockstep::nn

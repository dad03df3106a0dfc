#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/models/resnet.hpp>

namespace train_resnet {

/// Adds the widths of an mlp's hidden layers to inputs.options, as a text such as "256,128". Checkpoints store
/// inputs.options. Adds nothing if `hidden` is empty.
void keep_hidden(const std::vector<std::int64_t>& hidden, lockstep::nn::TrainingInputs& inputs);

/// Returns the model that `saved` names, for images of the size in `request`, and sets the model's name and hidden
/// sizes in `request`. `saved` comes from the checkpoint's state.json, which may be damaged: throws a DataError that
/// names this file if the checkpoint's tensors cannot belong to the model.
[[nodiscard]] lockstep::nn::Model model_of(const lockstep::nn::RunIdentity& saved, const std::string& checkpoint,
                                           lockstep::nn::ModelRequest& request);

}  // namespace train_resnet

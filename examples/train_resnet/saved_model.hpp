#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/models/resnet.hpp>

namespace train_resnet {

/// Adds the widths of an mlp's hidden layers to the run's identity, as "256,128"; adds nothing when there are none.
void keep_hidden(const std::vector<std::int64_t>& hidden, lockstep::nn::TrainingInputs& inputs);

/// Returns the model that a checkpoint names, for images of the size in `request`, and sets its name and sizes in
/// `request`. state.json may be damaged: a DataError names the file when the checkpoint's tensors cannot belong to that
/// model.
[[nodiscard]] lockstep::nn::Model model_of(const lockstep::nn::RunIdentity& saved, const std::string& checkpoint,
                                           lockstep::nn::ModelRequest& request);

}  // namespace train_resnet

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/models/resnet.hpp>

namespace train_resnet {

/// Puts the hidden layers of an mlp into the run's identity, "256,128"; nothing when there are none.
void keep_hidden(const std::vector<std::int64_t>& hidden, lockstep::nn::TrainingInputs& inputs);

/// The model that a checkpoint names, for the images of `request`, which gets its name and sizes. The checkpoint's
/// state.json may be damaged: nothing is planned for a model that its tensors cannot be of. DataError naming the file.
[[nodiscard]] lockstep::nn::Model model_of(const lockstep::nn::RunIdentity& saved, const std::string& checkpoint,
                                           lockstep::nn::ModelRequest& request);

}  // namespace train_resnet

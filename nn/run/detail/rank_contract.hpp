#pragma once

#include <map>
#include <string>

#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// Returns all items of a trainer that must be equal on all ranks before the first step, one per line. `device` is the
/// device of this rank, and `layers` must be the result of Model::layer_texts().
[[nodiscard]] std::string rank_contract(Device device, const Model& model,
                                        const std::map<std::string, std::string>& layers, const TrainingData& data,
                                        const TrainerOptions& options, const Choices& choices);

}  // namespace lockstep::nn::detail

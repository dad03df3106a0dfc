#pragma once

#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/data/open_data.hpp>

namespace train_resnet {

/// The damaged images of folder:DIR or list:FILE. Each rank decodes a part of the files, and all learn what any of them
/// found: they leave out the same. Collective.
[[nodiscard]] std::vector<lockstep::nn::DamagedImage> find_damaged(lockstep::comm::Session& session,
                                                                   const lockstep::comm::CpuShare& share,
                                                                   const lockstep::nn::DataOptions& data);

/// Lines of the header about them, the first ones by name, and all in config.json.
void add_damaged(const std::vector<lockstep::nn::DamagedImage>& damaged, lockstep::nn::TrainingInputs& inputs);

}  // namespace train_resnet

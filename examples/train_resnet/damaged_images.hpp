#pragma once

#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/data/open_data.hpp>

namespace train_resnet {

/// Returns the damaged images among `data` (folder:DIR or list:FILE). Each rank decodes a part of the files, and all
/// ranks return the images that any rank has found. Collective.
[[nodiscard]] std::vector<lockstep::nn::DamagedImage> find_damaged(lockstep::comm::Session& session,
                                                                   const lockstep::comm::CpuShare& share,
                                                                   const lockstep::nn::DataOptions& data);

/// Adds lines about the first 10 damaged images to the run's header, and all damaged images to config.json.
void add_damaged(const std::vector<lockstep::nn::DamagedImage>& damaged, lockstep::nn::TrainingInputs& inputs);

}  // namespace train_resnet

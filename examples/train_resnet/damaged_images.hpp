#pragma once

#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/data/open_data.hpp>

namespace train_resnet {

/// Returns the damaged images of folder:DIR or list:FILE. Each rank decodes a part of the files; all ranks return the
/// images that any rank has found. Collective.
[[nodiscard]] std::vector<lockstep::nn::DamagedImage> find_damaged(lockstep::comm::Session& session,
                                                                   const lockstep::comm::CpuShare& share,
                                                                   const lockstep::nn::DataOptions& data);

/// Adds lines with the first damaged images to the header, and all damaged images to config.json.
void add_damaged(const std::vector<lockstep::nn::DamagedImage>& damaged, lockstep::nn::TrainingInputs& inputs);

}  // namespace train_resnet

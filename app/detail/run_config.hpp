#pragma once

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/detail/trainer_maker.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn::detail {

/// Returns the contents of a run's config.json.
[[nodiscard]] Json config_of(const RunSite& site, const PreparedTraining& made, const TrainingInputs& inputs);

}  // namespace lockstep::nn::detail

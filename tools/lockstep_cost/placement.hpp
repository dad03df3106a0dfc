#pragma once

#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "tools/lockstep_cost/survey.hpp"

namespace lockstep::tools {

/// Chooses the device of this rank. Sets in `survey` the device, the peer GPU and the limits of their links. If GPU
/// paths cannot be measured, also sets the reason. Collective. The result holds the claims to GPUs, so the caller must
/// keep it until the measurements end.
[[nodiscard]] comm::RankDevice place(comm::Session& session, const DeviceRequest& request, SurveyOptions& survey);

}  // namespace lockstep::tools

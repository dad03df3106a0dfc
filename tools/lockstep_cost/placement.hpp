#pragma once

#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "tools/lockstep_cost/survey.hpp"

namespace lockstep::tools {

/// Chooses the device of this rank and sets the fields of `survey` that follow from it: device and peer, the limits of
/// the links between them, and the reason when GPU paths cannot be measured. Collective. The result holds the
/// claims to GPUs, so keep it until measuring ends.
[[nodiscard]] comm::RankDevice place(comm::Session& session, const DeviceRequest& request, SurveyOptions& survey);

}  // namespace lockstep::tools

#pragma once

#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "tools/lockstep_cost/survey.hpp"

namespace lockstep::tools {

/// Chooses the device of this rank and writes into `survey` what follows from it: device and peer, the limits of the
/// links between them, and, where GPU paths cannot be measured, why. Collective. Keep the result's claims until
/// measuring ends.
[[nodiscard]] comm::RankDevice place(comm::Session& session, const DeviceRequest& request, SurveyOptions& survey);

}  // namespace lockstep::tools

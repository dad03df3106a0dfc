#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Decides where a plan waits for the calls that run beside others (Call::beside), and lengthens the lives of the slots
/// that they touch until then, before place_slots(). Call j waits for call i < j, which runs beside, and for all before
/// it that do, when
/// - j touches memory that i writes, or writes memory that i reads (a slot, its aliases, another slot of the same
///   parameter), or
/// - j is the second call after i that runs beside, so that few tensors live longer.
/// The end of the plan waits for all.
void plan_joins(PlanContents& contents);

}  // namespace lockstep::nn

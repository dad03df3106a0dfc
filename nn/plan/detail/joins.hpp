#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Decides where a plan waits for the calls on the side stream (Call::beside), and extends the lives of the slots that
/// these calls touch up to the wait. Must run before place_slots(). Call j waits for call i < j on the side stream, and
/// for all earlier calls there, if
/// - j touches memory that i writes, or writes memory that i reads (a slot, its aliases, another slot of the same
///   parameter), or
/// - j is the second call after i on the side stream, so that few tensors live longer.
/// The end of the plan waits for all calls.
void plan_joins(PlanContents& contents);

}  // namespace lockstep::nn

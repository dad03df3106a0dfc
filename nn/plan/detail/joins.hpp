#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Decides where the plan's stream waits for calls on the side stream (Call::beside). Extends the lifetime of each slot
/// that a call on the side stream touches until the wait for this call. Must run before place_slots(). Before call j,
/// the plan's stream waits for an earlier call i on the side stream, and for all calls before i on that stream, if
/// - j touches memory that i writes, or writes memory that i reads (a slot, its aliases, or another slot of the same
///   parameter), or
/// - j is the second call after i on the side stream. This limit keeps the number of longer-lived tensors small.
/// At the end of the plan, the plan's stream waits for all calls on the side stream.
void plan_joins(PlanContents& contents);

}  // namespace lockstep::nn

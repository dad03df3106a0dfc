#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Decides before which call the plan's stream waits for each call i on the side stream (Call::beside). Extends the
/// lifetime of each slot that call i touches until this wait. Must run before place_slots().
///
/// The plan's stream waits for call i before the first call j after i that meets one of these conditions:
/// - Call j runs on the plan's stream, and it touches memory that i writes, or writes memory that i reads. Aliases of a
///   slot share memory, and so do slots of the same parameter.
/// - Call j is the second call after i on the side stream. This condition limits the number of slots that live longer.
///
/// If no call meets a condition, the plan's stream waits at the end of the plan. A wait for a call also waits for all
/// earlier calls on the side stream, because the side stream runs its calls in order.
void plan_joins(PlanContents& contents);

}  // namespace lockstep::nn

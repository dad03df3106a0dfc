#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Changes a training plan so that backward computes some activations again, instead of reading activations that were
/// kept since forward (PlanOptions::recompute). All results stay the same to the bit. `contents` must have all forward
/// and backward calls. Must be called before place_slots(). Throws UsageError for an invalid `wanted`.
///
/// The function chooses some forward calls and inserts a copy of each into backward. The op of a copy begins with
/// "again". Copies that use each other's results form a group. All copies of a group come just before the first
/// backward call that reads a result of the group, in the order of the original calls.
///
/// Each slot that a copy writes gets a second slot (SlotInfo::again). The copies and all backward calls use the second
/// slot instead of the first. So the memory of the first slot is free for other slots as soon as forward has used its
/// value for the last time.
///
/// Layers need no code for recomputation. The function uses only the lists of slots that each call reads and writes.
/// The code of a call finds its tensors in a Frame, and backward has its own Frame with the second slots.
void recompute(PlanContents& contents, Recompute wanted);

}  // namespace lockstep::nn

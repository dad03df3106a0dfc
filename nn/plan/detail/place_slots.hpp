#pragma once

#include <vector>

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// The slot whose memory slot `index` has: itself, or the last one behind SlotInfo::alias_of.
[[nodiscard]] int root_of(const std::vector<SlotInfo>& slots, int index);

/// Places the slots that own memory in one workspace. Memory is reused after a slot's last reader. An alias extends the
/// life of the slot whose memory it took. Behind the end of each slot that owns memory there are
/// PlanContents::guard_bytes() that are no slot's.
void place_slots(PlanContents& contents, bool reuse_memory);

}  // namespace lockstep::nn

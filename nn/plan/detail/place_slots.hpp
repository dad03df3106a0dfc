#pragma once

#include <vector>

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Returns the index of the slot that owns the memory of slot `index`. A chain of SlotInfo::alias_of leads to that
/// slot.
[[nodiscard]] int root_of(const std::vector<SlotInfo>& slots, int index);

/// Places the slots that own memory in one workspace. If `reuse_memory` is true, the memory of a slot is used again
/// after the slot's last use. An alias extends the lifetime of the slot that owns its memory.
/// PlanContents::guard_bytes() bytes follow each slot that owns memory, and belong to no slot. If `kept_apart` is true,
/// slots that live from forward to backward take the first PlanContents::kept_bytes bytes, which no other slot uses.
void place_slots(PlanContents& contents, bool reuse_memory, bool kept_apart = false);

}  // namespace lockstep::nn

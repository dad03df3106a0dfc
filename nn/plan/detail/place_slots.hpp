#pragma once

#include <vector>

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Returns the slot that owns the memory of slot `index`: the slot at the end of the chain of SlotInfo::alias_of.
[[nodiscard]] int root_of(const std::vector<SlotInfo>& slots, int index);

/// Places the slots that own memory in one workspace. If `reuse_memory` is true, later slots reuse a slot's memory
/// after its last use. An alias extends the life of the slot that owns its memory. After each slot that owns memory
/// come PlanContents::guard_bytes() bytes, which belong to no slot. If `kept_apart` is true, slots that live from
/// forward to backward come first, in PlanContents::kept_bytes bytes that no other slot uses.
void place_slots(PlanContents& contents, bool reuse_memory, bool kept_apart = false);

}  // namespace lockstep::nn

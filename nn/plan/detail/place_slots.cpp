#include <lockstep/nn/plan/detail/place_slots.hpp>

#include <algorithm>
#include <utility>

#include <lockstep/nn/plan/memory_plan.hpp>
#include <lockstep/runtime/base/align.hpp>

namespace lockstep::nn {

int root_of(const std::vector<SlotInfo>& slots, int index) {
  while (slots[static_cast<std::size_t>(index)].alias_of >= 0) {
    index = slots[static_cast<std::size_t>(index)].alias_of;
  }
  return index;
}

namespace {

/// Returns the offset of each lifetime. Lifetimes that last from forward to backward come first in the workspace. Sets
/// the sizes in `contents`.
std::vector<std::size_t> place_apart(PlanContents& contents, const std::vector<Lifetime>& lifetimes) {
  std::vector<std::size_t> offsets(lifetimes.size());
  std::size_t begin = 0;
  contents.unshared_bytes = 0;
  for (const bool kept : {true, false}) {
    std::vector<Lifetime> part;
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      if ((lifetimes[i].first < contents.backward_begin && lifetimes[i].last >= contents.backward_begin) == kept) {
        part.push_back(lifetimes[i]);
        numbers.push_back(i);
      }
    }
    const MemoryPlan memory = plan_memory(part, kAlignment);
    for (std::size_t i = 0; i < part.size(); ++i) {
      offsets[numbers[i]] = begin + memory.offsets[i];
    }
    begin += align_up(memory.peak_bytes, kAlignment);
    contents.unshared_bytes += memory.sum_bytes;
    if (kept) {
      contents.kept_bytes = begin;
    }
  }
  contents.workspace_bytes = begin;
  contents.kept_apart = true;
  return offsets;
}

}  // namespace

void place_slots(PlanContents& contents, bool reuse_memory, bool kept_apart) {
  std::vector<SlotInfo>& slots = contents.slots;
  std::vector<Lifetime> lifetimes;
  std::vector<int> place(slots.size(), -1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    SlotInfo& slot = slots[i];
    if (slot.kind != SlotKind::workspace || slot.first < 0) {
      continue;
    }
    slot.saved = slot.first < contents.backward_begin && slot.last >= contents.backward_begin;
    const int root = root_of(slots, static_cast<int>(i));
    int& at = place[static_cast<std::size_t>(root)];
    if (at < 0) {
      at = static_cast<int>(lifetimes.size());
      lifetimes.push_back(
          {slots[static_cast<std::size_t>(root)].bytes + contents.guard_bytes(), slot.first, slot.last});
    } else {
      Lifetime& life = lifetimes[static_cast<std::size_t>(at)];
      life.first = std::min(life.first, slot.first);
      life.last = std::max(life.last, slot.last);
    }
  }
  if (!reuse_memory) {
    for (Lifetime& life : lifetimes) {
      life.first = 0;
      life.last = static_cast<int>(contents.calls.size());
    }
  }
  std::vector<std::size_t> offsets;
  if (kept_apart) {
    offsets = place_apart(contents, lifetimes);
  } else {
    MemoryPlan memory = plan_memory(lifetimes, kAlignment);
    contents.workspace_bytes = memory.peak_bytes;
    contents.unshared_bytes = memory.sum_bytes;
    offsets = std::move(memory.offsets);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind == SlotKind::workspace && slots[i].first >= 0) {
      const auto root = static_cast<std::size_t>(root_of(slots, static_cast<int>(i)));
      slots[i].offset = offsets[static_cast<std::size_t>(place[root])];
      slots[i].end = slots[i].offset + slots[root].bytes;
    }
  }
}

}  // namespace lockstep::nn

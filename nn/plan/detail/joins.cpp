#include <lockstep/nn/plan/detail/joins.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <lockstep/nn/plan/detail/place_slots.hpp>

namespace lockstep::nn {
namespace {

constexpr std::size_t kUnderWay = 2;

/// Identity of a slot's memory. Two slots with equal identities share memory.
using Memory = std::pair<SlotKind, int>;
Memory memory_of(const std::vector<SlotInfo>& slots, SlotId slot) {
  const SlotInfo& info = slots[static_cast<std::size_t>(slot.index)];
  return {info.kind, info.kind == SlotKind::workspace ? root_of(slots, slot.index) : info.source};
}

bool share(const std::vector<SlotInfo>& slots, const std::vector<SlotId>& a, const std::vector<SlotId>& b) {
  return std::any_of(a.begin(), a.end(), [&](SlotId of_a) {
    return std::any_of(b.begin(), b.end(),
                       [&](SlotId of_b) { return memory_of(slots, of_a) == memory_of(slots, of_b); });
  });
}

bool conflict(const std::vector<SlotInfo>& slots, const Call& beside, const Call& later) {
  return share(slots, beside.writes, later.reads) || share(slots, beside.writes, later.writes) ||
         share(slots, beside.reads, later.writes);
}

}  // namespace

void plan_joins(PlanContents& contents) {
  std::vector<SlotInfo>& slots = contents.slots;
  const std::vector<Call>& calls = contents.calls;
  std::vector<int> beside;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].beside) {
      beside.push_back(static_cast<int>(i));
    }
  }
  contents.joins.assign(beside.size(), {});
  int next = static_cast<int>(calls.size());  // next call before which the plan's stream waits for the side stream
  for (std::size_t k = beside.size(); k-- > 0;) {
    int before = std::min(next, k + kUnderWay < beside.size() ? beside[k + kUnderWay] : next);
    for (int j = beside[k] + 1; j < before; ++j) {
      const Call& later = calls[static_cast<std::size_t>(j)];
      if (!later.beside && conflict(slots, calls[static_cast<std::size_t>(beside[k])], later)) {
        before = j;
      }
    }
    contents.joins[k] = {beside[k], before};
    next = before;
    for (const auto* list :
         {&calls[static_cast<std::size_t>(beside[k])].reads, &calls[static_cast<std::size_t>(beside[k])].writes}) {
      for (const SlotId slot : *list) {
        int& last = slots[static_cast<std::size_t>(slot.index)].last;
        last = std::max(last, before - 1);
      }
    }
  }
}

}  // namespace lockstep::nn

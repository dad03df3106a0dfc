#include <lockstep/nn/plan/memory_plan.hpp>

#include <algorithm>
#include <numeric>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

MemoryPlan plan_memory(std::span<const Lifetime> lifetimes, std::size_t alignment) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  std::vector<std::size_t> placed;  // indices of the lifetimes that already have an offset, sorted by offset
  for (const std::size_t i : order) {
    const Lifetime& life = lifetimes[i];
    require<ShapeError>(life.first <= life.last, "plan_memory: lifetime ", i, " ends at ", life.last, " and begins at ",
                        life.first, ", expected the end after the beginning");
    const std::size_t bytes = align_up(life.bytes, alignment);
    plan.sum_bytes += bytes;
    std::size_t offset = 0;
    for (const std::size_t j : placed) {
      const Lifetime& other = lifetimes[j];
      if (other.last < life.first || life.last < other.first) {
        continue;
      }
      if (offset + bytes <= plan.offsets[j]) {
        break;  // the gap before lifetime j is large enough
      }
      offset = std::max(offset, plan.offsets[j] + align_up(other.bytes, alignment));
    }
    plan.offsets[i] = offset;
    plan.peak_bytes = std::max(plan.peak_bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](std::size_t o, std::size_t j) { return o < plan.offsets[j]; }),
                  i);
  }
  return plan;
}

}  // namespace lockstep::nn

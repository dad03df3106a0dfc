#include <lockstep/comm/gradients/peer_plans.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Elements of the gradients [first, last).
std::int64_t elements_of(std::span<const GradientRange> gradients, std::size_t first, std::size_t last) {
  return gradients[last - 1].end - gradients[first].begin;
}

/// A bucket closes with the gradient that takes it to its cap of elements or beyond.
std::vector<int> closing_at(std::span<const GradientRange> gradients, std::int64_t first_cap, std::int64_t cap) {
  std::vector<int> ends;
  std::size_t first = 0;
  for (std::size_t last = 1; last <= gradients.size(); ++last) {
    if (last == gradients.size() || elements_of(gradients, first, last) >= (ends.empty() ? first_cap : cap)) {
      ends.push_back(static_cast<int>(last));
      first = last;
    }
  }
  return ends;
}

std::vector<int> by_cycles(std::span<const GradientRange> gradients, std::span<const double> ready_s,
                           const OverlapModel& model, std::int64_t element_bytes, std::int64_t threshold) {
  constexpr double kCycle_s = 1e-3;
  std::vector<int> ends;
  std::size_t first = 0;
  for (double now = 0; first < gradients.size(); now += kCycle_s) {
    std::size_t last = first;
    while (last < gradients.size() && ready_s[last] <= now &&
           (last == first || elements_of(gradients, first, last + 1) * element_bytes <= threshold)) {
      ++last;
    }
    if (last == first) {  // to the last cycle before there is something
      now += kCycle_s * std::max(std::ceil((ready_s[first] - now) / kCycle_s) - 1, 0.0);
    } else {
      const auto bytes = static_cast<double>(elements_of(gradients, first, last) * element_bytes);
      now += model.all_reduce.predict(bytes) * (now < ready_s.back() ? model.slowdown : 1);
      ends.push_back(static_cast<int>(last));
      first = last;
    }
  }
  return ends;
}

}  // namespace

std::vector<NamedPlan> peer_plans(std::span<const GradientRange> gradients, std::span<const double> ready_s,
                                  const OverlapModel& model, std::int64_t element_bytes) {
  require<ShapeError>(ready_s.size() == gradients.size() && std::is_sorted(ready_s.begin(), ready_s.end()),
                      "peer_plans: ", ready_s.size(), " ready times of ", gradients.size(),
                      " gradients, expected one of each, ascending");
  if (gradients.empty()) {
    return {};
  }
  constexpr std::int64_t kMegatron = 40'000'000;
  const auto full = [&](std::int64_t bytes) { return (bytes + element_bytes - 1) / element_bytes; };
  return {{"PyTorch DDP, 1 and 25 MiB", closing_at(gradients, full(kMiB), full(25 * kMiB))},
          {"Horovod, 64 MiB, 1 ms", by_cycles(gradients, ready_s, model, element_bytes, 64 * kMiB)},
          {"Horovod, 128 MiB, 1 ms", by_cycles(gradients, ready_s, model, element_bytes, 128 * kMiB)},
          {"Megatron-Core, 40 M", closing_at(gradients, kMegatron, kMegatron)}};
}

}  // namespace lockstep::comm

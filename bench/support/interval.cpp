#include "bench/support/interval.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include <lockstep/runtime/base/random.hpp>

namespace lockstep::bench {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::pair<double, double> ratio_interval(std::span<const double> a, std::span<const double> b,
                                         const std::function<double(std::span<const double>)>& mid) {
  constexpr std::size_t kDraws = 10000;
  Random random(1, RandomUse::test);
  std::vector<double> ratios;
  std::vector<double> above(a.size());
  std::vector<double> below(a.size());
  for (std::size_t draw = 0; draw < kDraws; ++draw) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto pair = static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(a.size())));
      above[i] = a[pair];
      below[i] = b[pair];
    }
    ratios.push_back(mid(above) / mid(below));
  }
  std::sort(ratios.begin(), ratios.end());
  return {ratios[kDraws / 40], ratios[kDraws - kDraws / 40 - 1]};
}

}  // namespace lockstep::bench

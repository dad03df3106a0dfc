#include "measure/samples.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::measure {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) {
    return kNothing;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double Samples::median() const {
  return median_of(seconds);
}

double Samples::mean() const {
  return seconds.empty() ? kNothing
                         : std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

double Samples::min() const {
  return seconds.empty() ? kNothing : *std::min_element(seconds.begin(), seconds.end());
}

double Samples::max() const {
  return seconds.empty() ? kNothing : *std::max_element(seconds.begin(), seconds.end());
}

std::optional<double> Samples::percentile(double percent) const {
  require<UsageError>(percent > 0 && percent < 100, "percentile is ", percent, ", expected a value between 0 and 100");
  const auto count = static_cast<double>(seconds.size());
  // At least one value must lie above the percentile: for 95 %, 20 values are enough. Both sides are multiplied by 100,
  // so that whole numbers are compared when percent is whole.
  if (count * (100 - percent) < 100) {
    return std::nullopt;
  }
  std::vector<double> values = seconds;
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(count * percent / 100));
  const auto at = values.begin() + std::max<std::ptrdiff_t>(rank, 1) - 1;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double Samples::rank_spread() const {
  if (rank_medians.size() < 2) {
    return 1;
  }
  const auto [least, most] = std::minmax_element(rank_medians.begin(), rank_medians.end());
  return *most / *least;
}

}  // namespace lockstep::measure

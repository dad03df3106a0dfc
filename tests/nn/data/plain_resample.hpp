#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

/// Bilinear resampling with antialiasing: a plain loop in double over all pixels. It is the oracle of
/// images::resample().
namespace lockstep::testing {

/// Returns the mean of value(pixel) over low <= pixel < high, with the weights of a triangle around `middle`.
inline double plain_mean(double middle, double step, std::int64_t low, std::int64_t high,
                         const std::function<double(std::int64_t)>& value) {
  const double width = std::max(1.0, std::abs(step));
  double sum = 0;
  double weights = 0;
  for (std::int64_t pixel = low; pixel < high; ++pixel) {
    const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(pixel) + 0.5 - middle) / width);
    sum += weight * value(pixel);
    weights += weight;
  }
  return sum / weights;
}

}  // namespace lockstep::testing

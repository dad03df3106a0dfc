#include "tests/support/gradient_check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <lockstep/runtime/base/random.hpp>

#include "tests/support/guarded.hpp"

namespace lockstep::testing {
namespace {

/// Returns `count` different indices below `size`, or all of them if `count` is larger.
std::vector<std::size_t> sample(std::size_t size, std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> indices(size);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  if (size > count) {
    Random random(seed, RandomUse::test);
    for (std::size_t i = 0; i < count; ++i) {
      std::swap(indices[i], indices[i + random.below(static_cast<std::uint32_t>(size - i))]);
    }
    indices.resize(count);
  }
  return indices;
}

double tensor_error(const std::function<double()>& function, const GradientPair& tensor, double h,
                    std::int64_t max_elements, std::uint64_t seed) {
  require<ShapeError>(tensor.values.shape == tensor.gradient.shape, "gradient check of ", tensor.name, ": values are ",
                      tensor.values.shape, ", gradient is ", tensor.gradient.shape);
  const std::span<double> x = tensor.values.span<double>();
  const std::vector<double> analytic = to_doubles(tensor.gradient);
  double difference = 0;
  double norm = 0;
  for (const std::size_t i : sample(x.size(), static_cast<std::size_t>(max_elements), seed)) {
    const double kept = x[i];
    const double step = h * std::max(1.0, std::abs(kept));
    const double above = x[i] = kept + step;
    const double f_above = function();
    const double below = x[i] = kept - step;
    const double f_below = function();
    x[i] = kept;
    // above - below is the exact distance of the two points. Rounding may make it differ from 2 * step.
    const double numeric = (f_above - f_below) / (above - below);
    difference += (analytic[i] - numeric) * (analytic[i] - numeric);
    norm += numeric * numeric;
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace

double gradient_error(const std::function<double()>& function, std::span<const GradientPair> tensors, double h,
                      std::int64_t max_elements, std::uint64_t seed) {
  double worst = 0;
  for (const GradientPair& tensor : tensors) {
    worst = std::max(worst, tensor_error(function, tensor, h, max_elements, seed));
  }
  return worst;
}

double weighted_sum(const TensorView& out, const TensorView& weights) {
  const std::vector<double> a = to_doubles(out);
  const std::vector<double> b = to_doubles(weights);
  require<ShapeError>(a.size() == b.size(), "weighted sum: ", out, " and ", weights);
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace lockstep::testing

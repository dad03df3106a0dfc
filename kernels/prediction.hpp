#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

/// Defines when a label counts as correct, for the accuracy, top-k accuracy, confusion and calibration of a classifier,
/// on host and GPU. `at(k)` returns the output of class k. If an output is NaN or +infinity, the outputs have no
/// softmax, and no label is correct. Otherwise outputs are ordered from the largest to the smallest; of equal outputs,
/// the one with the lower index is first. A label is correct among the first k if its output is finite and is one of
/// the first k in this order.
namespace lockstep::ops {

template <class V>
struct Prediction {
  std::int64_t index = 0;  ///< index of the largest output; of equal outputs the first
  V largest{};
  bool defined = false;  ///< true if the outputs have a softmax; if false, index has no meaning
};

template <class At>
[[nodiscard]] auto predict(std::int64_t classes, At at) {
  Prediction<decltype(at(std::int64_t{0}))> best{0, at(0)};
  bool numbers = !std::isnan(best.largest);
  for (std::int64_t k = 1; k < classes; ++k) {
    const auto value = at(k);
    numbers = numbers && !std::isnan(value);
    if (best.largest < value) {
      best.index = k;
      best.largest = value;
    }
  }
  best.defined = numbers && std::isfinite(best.largest);
  return best;
}

/// Returns how many classes have a larger output than class `label`, or an equal output and a lower index. Returns
/// `classes`, so that the label is wrong for every k, if an output is NaN or +infinity, or the label's own output is
/// -infinity.
template <class At>
[[nodiscard]] std::int64_t rank_of(std::int64_t classes, std::int64_t label, At at) {
  const auto own = at(label);
  bool defined = std::isfinite(own);
  std::int64_t ahead = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const auto value = at(k);
    defined = defined && value < std::numeric_limits<double>::infinity();  // a NaN gives false
    ahead += value > own || (value == own && k < label) ? 1 : 0;
  }
  return defined ? ahead : classes;
}

}  // namespace lockstep::ops

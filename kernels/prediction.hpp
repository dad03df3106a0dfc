#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

/// How the outputs of a classifier are judged, in accuracy, top-k, confusion and calibration, on host and GPU. Outputs
/// of which one is NaN or infinite have no softmax and are wrong, whatever the label. Otherwise the label is right when
/// its output is finite and fewer than k outputs are ahead of it: larger ones, and equal ones of lower index. `at(k)`:
/// the output of class k.
namespace lockstep::ops {

template <class V>
struct Prediction {
  std::int64_t index = 0;  ///< index of the largest output, the first of equals
  V largest{};
  bool defined = false;  ///< the outputs have a softmax; else index says nothing
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

/// Returns how many classes are ahead of the label's; all of them, so that no k is enough, when the label cannot be
/// right.
template <class At>
[[nodiscard]] std::int64_t rank_of(std::int64_t classes, std::int64_t label, At at) {
  const auto own = at(label);
  bool defined = std::isfinite(own);
  std::int64_t ahead = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const auto value = at(k);
    defined = defined && value < std::numeric_limits<double>::infinity();  // false for NaN
    ahead += value > own || (value == own && k < label) ? 1 : 0;
  }
  return defined ? ahead : classes;
}

}  // namespace lockstep::ops

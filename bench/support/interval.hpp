#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::bench {

[[nodiscard]] double mean_of(std::span<const double> values);
[[nodiscard]] double median_of(std::span<const double> values);  ///< of an even number the upper one

/// The quantiles 0.025 and 0.975 of mid(a) / mid(b) over pairs (a[i], b[i]) that are drawn again, as many as there are,
/// always in the same way (Efron 1979, "Bootstrap methods"). mid: mean_of or median_of. Equally many, at least one.
[[nodiscard]] std::pair<double, double> ratio_interval(std::span<const double> a, std::span<const double> b,
                                                       const std::function<double(std::span<const double>)>& mid);

}  // namespace lockstep::bench

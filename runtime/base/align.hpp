#pragma once

#include <concepts>

namespace lockstep {

/// Returns the smallest multiple of `unit` that is at least `value`. Requires value >= 0 and unit > 0.
template <std::integral T>
[[nodiscard]] constexpr T align_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace lockstep

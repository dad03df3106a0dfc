#pragma once

#include <chrono>

namespace lockstep::nn::detail {

/// Returns the time of a monotonic clock, in seconds.
[[nodiscard]] inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::nn::detail

#pragma once

#include <chrono>

namespace lockstep::nn::detail {

/// Returns the time in seconds of a clock that never goes back.
[[nodiscard]] inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::nn::detail

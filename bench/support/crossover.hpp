#pragma once

#include <optional>
#include <span>
#include <string>

namespace lockstep::bench {

/// One thing, done in both places. NaN: was not measured there.
struct TimesOfSize {
  double size = 0;
  double cpu_seconds = 0;
  double gpu_seconds = 0;
};

/// From which size on the GPU is faster.
struct Crossover {
  int sizes = 0;               ///< measured in both places; 0: nothing is known
  int crossings = 0;           ///< neighbours of which the GPU wins one only
  bool gpu_wins_last = false;  ///< at the largest size
  double smallest = 0;         ///< of the sizes measured in both places
  double largest = 0;
  std::optional<double> from{};  ///< between two sizes, when the GPU wins the larger ones and the CPU others
};

/// Sizes ascend. Those without two times above 0 are left out. `from` is where the last crossing is: the straight line
/// through the ratio of both times at the two sizes there, in logarithms, meets 1. A tie is the CPU's. Pure.
[[nodiscard]] Crossover find_crossover(std::span<const TimesOfSize> times);

/// "from 812 x 812 on cuda:0 is faster than the CPU", "cuda:0 is faster than the CPU at all sizes, 16 to 2048",
/// "the CPU is faster than cuda:0 at the largest size, 2048", "no size was measured on both the CPU and cuda:0"; and
/// how often it changed when that was more than once. Pure.
[[nodiscard]] std::string crossover_text(const Crossover& crossover, const std::string& gpu);

}  // namespace lockstep::bench

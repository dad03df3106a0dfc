#pragma once

#include <optional>
#include <span>
#include <string>

namespace lockstep::bench {

/// Times of one piece of work on the CPU and on the GPU. NaN: not measured there.
struct TimesOfSize {
  double size = 0;
  double cpu_seconds = 0;
  double gpu_seconds = 0;
};

/// From which size on the GPU is faster.
struct Crossover {
  int sizes = 0;               ///< measured in both places; 0: nothing is known
  int crossings = 0;           ///< neighbouring sizes between which the winner changes
  bool gpu_wins_last = false;  ///< at the largest size
  double smallest = 0;         ///< of the sizes measured in both places
  double largest = 0;
  /// Between two sizes; given when the GPU wins the larger sizes and the CPU smaller ones.
  std::optional<double> from{};
};

/// Sizes ascend. Sizes without two times above 0 are left out. `from` lies at the last crossing: where the straight
/// line through the ratio of both times at its two sizes, in logarithms, meets 1. A tie counts for the CPU. Pure.
[[nodiscard]] Crossover find_crossover(std::span<const TimesOfSize> times);

/// "from 812 x 812 on cuda:0 is faster than the CPU", "cuda:0 is faster than the CPU at all sizes, 16 to 2048", "the
/// CPU is faster than cuda:0 at the largest size, 2048", "no size was measured on both the CPU and cuda:0"; with the
/// number of crossings when there are several. Pure.
[[nodiscard]] std::string crossover_text(const Crossover& crossover, const std::string& gpu);

}  // namespace lockstep::bench

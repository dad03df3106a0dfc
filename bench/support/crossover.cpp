#include "bench/support/crossover.hpp"

#include <cmath>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::bench {
namespace {

bool is_time(double seconds) {
  return seconds > 0 && std::isfinite(seconds);
}

/// The size at which the line through both points is 0: the ratio of the times over the size, both in logarithms.
double between(const TimesOfSize& a, const TimesOfSize& b) {
  const double at_a = std::log(a.gpu_seconds / a.cpu_seconds);
  const double at_b = std::log(b.gpu_seconds / b.cpu_seconds);
  return a.size * std::pow(b.size / a.size, at_a / (at_a - at_b));
}

}  // namespace

Crossover find_crossover(std::span<const TimesOfSize> times) {
  Crossover found;
  const TimesOfSize* previous = nullptr;
  for (const TimesOfSize& now : times) {
    if (!is_time(now.cpu_seconds) || !is_time(now.gpu_seconds)) {
      continue;
    }
    const bool gpu_wins = now.gpu_seconds < now.cpu_seconds;
    if (previous == nullptr) {
      found.smallest = now.size;
    } else if (gpu_wins != found.gpu_wins_last) {
      ++found.crossings;
      found.from = gpu_wins ? std::optional(between(*previous, now)) : std::nullopt;
    }
    ++found.sizes;
    found.gpu_wins_last = gpu_wins;
    found.largest = now.size;
    previous = &now;
  }
  return found;
}

std::string crossover_text(const Crossover& crossover, const std::string& gpu) {
  if (crossover.sizes == 0) {
    return concat("no size was measured on both the CPU and ", gpu);
  }
  const std::string largest = digits(crossover.largest, 0);
  std::string text;
  if (!crossover.gpu_wins_last) {
    text = concat("the CPU is faster than ", gpu, " at the largest size, ", largest);
  } else if (!crossover.from) {
    text = concat(gpu, " is faster than the CPU at all sizes, ", digits(crossover.smallest, 0), " to ", largest);
  } else {
    const std::string from = digits(*crossover.from, 0);
    text = concat("from ", from, " x ", from, " on ", gpu, " is faster than the CPU");
  }
  return crossover.crossings > 1 ? concat(text, "; it changes ", crossover.crossings, " times") : text;
}

}  // namespace lockstep::bench

#pragma once

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::measure {

/// Measures how many f32 operations per second the context's threads reach with multiply-adds in registers, with the
/// vectors that LOCKSTEP_CPU_ARCH allows. One multiply-add counts as two operations. The result is the limit of f32
/// convolutions and products on this processor. Repeats a loop of some milliseconds until min_seconds have passed, at
/// least once, and returns the rate of the fastest repetition. Blocks the caller.
[[nodiscard]] double fma_flop_per_second(const CpuContext& context, double min_seconds);

}  // namespace lockstep::measure

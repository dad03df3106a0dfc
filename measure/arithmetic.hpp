#pragma once

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::measure {

/// Returns the operations per second that the context's threads reach with f32 multiply-adds in registers (two
/// operations each), with the vectors that LOCKSTEP_CPU_ARCH allows. This is the limit of f32 convolutions and products
/// on this processor. Repeats turns of some milliseconds for min_seconds, at least one turn, and returns the best;
/// blocks meanwhile.
[[nodiscard]] double fma_flop_per_second(const CpuContext& context, double min_seconds);

}  // namespace lockstep::measure

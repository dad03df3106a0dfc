#pragma once

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::measure {

/// Operations a second that the context's threads reach with f32 multiply-adds in registers (two operations each), the
/// best of turns (of some milliseconds, at least one) that take min_seconds together, for which it blocks: the limit of
/// f32 convolutions and products on this processor, with the vectors that LOCKSTEP_CPU_ARCH allows.
[[nodiscard]] double fma_flop_per_second(const CpuContext& context, double min_seconds);

}  // namespace lockstep::measure

#pragma once

#include <lockstep/runtime/stream/context.hpp>

namespace lockstep::measure {

/// Operations a second that the context's threads reach with f32 multiply-adds in registers (two operations each), the
/// best of several turns that take min_seconds together: the limit of f32 convolutions and products on this processor,
/// with the vectors that LOCKSTEP_CPU_ARCH allows.
[[nodiscard]] double fma_flop_per_second(const CpuContext& context, double min_seconds);

}  // namespace lockstep::measure

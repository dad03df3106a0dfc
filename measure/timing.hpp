#pragma once

#include <functional>

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::measure {

/// Returns the median seconds of one call, which enqueues work on the context's stream. Measures until min_seconds have
/// passed or 5000 values are taken. Short calls are timed in groups, so that reading the clock adds little to the
/// result.
[[nodiscard]] double median_seconds(Context& context, double min_seconds, const std::function<void()>& call);

/// Returns the bytes per second, read plus written, of a copy in the context's memory that is too large for any cache.
/// This rate is the limit with which rates of other work are compared.
[[nodiscard]] double copy_bandwidth(Context& context, double min_seconds);

}  // namespace lockstep::measure

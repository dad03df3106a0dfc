#pragma once

#include <functional>

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::measure {

/// Median seconds of one call, which enqueues work on the context's stream, over at least min_seconds. Short calls are
/// timed in groups, so that the clock's own cost does not count.
[[nodiscard]] double median_seconds(Context& context, double min_seconds, const std::function<void()>& call);

/// Bytes per second of a copy too large for any cache, in the context's memory: bytes read plus bytes written. Results
/// are compared with this limit.
[[nodiscard]] double copy_bandwidth(Context& context, double min_seconds);

}  // namespace lockstep::measure

#pragma once

#include <cstddef>

namespace lockstep {

/// memcpy with non-temporal stores, if every model of the processor's family has them: for targets that are larger than
/// the caches. Cached stores would evict other data, and would first read the target's lines, a third of all traffic.
/// The stores are complete on return.
void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep

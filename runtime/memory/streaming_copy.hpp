#pragma once

#include <cstddef>

namespace lockstep {

/// Copies like memcpy, for targets that are larger than the caches. Uses non-temporal stores if every model of the
/// processor's family has them. Ordinary stores would evict other data from the caches. Ordinary stores would also read
/// the target's cache lines first, which is a third of all memory traffic. The stores are complete on return.
void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep

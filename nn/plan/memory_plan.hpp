#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::nn {

/// A block of `bytes` bytes that is needed from call `first` to call `last`, both included.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< offset of each lifetime in the common block, in bytes
  std::size_t peak_bytes = 0;        ///< size of the common block
  std::size_t sum_bytes = 0;         ///< size of the block if no lifetimes shared memory
};

/// Places lifetimes in one block. Lifetimes that overlap in time do not overlap in memory. The function places the
/// lifetimes in order of size, largest first. Each lifetime gets the lowest offset at which its bytes are free from its
/// first to its last call ("greedy by size", Pisarchyk and Lee, arXiv 2001.03288, section 5.2). Offsets are multiples
/// of `alignment`. Equal lists of lifetimes always give equal offsets.
[[nodiscard]] MemoryPlan plan_memory(std::span<const Lifetime> lifetimes, std::size_t alignment = 256);

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

/// Lets the last block of a launch continue with the results of all blocks. Each block draws a ticket after it has
/// written its result to memory; the block that draws the last ticket continues. Timing decides which block continues,
/// but not what the block computes.
namespace lockstep::gpu {

#if defined(LOCKSTEP_EMULATE_CUDA)
inline constexpr std::int64_t kTickets = 2;  // small, so that tiles share tickets even in small tests
#else
inline constexpr std::int64_t kTickets = 4096;
#endif

/// Returns the tickets of `context`: kTickets counters on the device, which are 0 between kernels. Each kernel sets its
/// tickets back to 0, and the kernels of a context run one after another. The first call in a context allocates memory;
/// this call throws StateError when the context's stream is being captured.
[[nodiscard]] inline unsigned* tickets(CudaContext& context) {
  struct Tickets {
    Tensor memory;
  };
  const Tickets& tickets = context.library<Tickets>([&] {
    require<StateError>(
        !is_capturing(context.stream()),
        "batch_norm: the first call of a context allocates, expected one before the stream is captured");
    return std::make_shared<Tickets>(Tickets{Tensor::zeros(context, Shape{kTickets}, DType::i32)});
  });
  return static_cast<unsigned*>(tickets.memory.view().data);
}

/// Records that this block has written a part of tile `tile`. There are `tiles` tiles with `parts` parts each. The
/// block that records the last part runs f(tile), which sees all parts. All threads of the block must call when_last().
///
/// If there are more than kTickets tiles, several tiles share a ticket. Then the block that records the last part of
/// all these tiles runs f for each of them. tickets: (kTickets).
template <class F>
__device__ void when_last(unsigned* tickets, std::int64_t tile, std::int64_t tiles, std::int64_t parts, F f) {
  LOCKSTEP_SHARED(bool, last, [1]);
  const std::int64_t group = tile % kTickets;
  __syncthreads();
  if (threadIdx.x == 0) {
    const std::int64_t all = (tiles - group + kTickets - 1) / kTickets * parts;
    unsigned drawn = 0;
    // The first fence makes the block's part visible before its ticket; the second makes the parts of all blocks
    // visible after the last ticket.
    __threadfence();
    drawn = atomicAdd(tickets + group, 1U);
    __threadfence();
    last[0] = static_cast<std::int64_t>(drawn) + 1 == all;
  }
  __syncthreads();
  if (last[0]) {
    for (std::int64_t each = group; each < tiles; each += kTickets) {
      f(each);
    }
    if (threadIdx.x == 0) {
      tickets[group] = 0;
    }
  }
}

}  // namespace lockstep::gpu

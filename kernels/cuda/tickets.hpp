#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

/// How the last of many blocks goes on with what all of them have written, in one launch: each block draws a ticket
/// when its part lies in memory, and who draws the last one continues. Which block that is depends on time, what it
/// computes does not.
namespace lockstep::gpu {

#if defined(LOCKSTEP_EMULATE_CUDA)
inline constexpr std::int64_t kTickets = 2;  // small, so that the tiles of small tests share them
#else
inline constexpr std::int64_t kTickets = 4096;
#endif

/// The tickets of a context: kTickets zeros on the device. A kernel leaves them as it finds them, and the kernels of a
/// context run one after another. The first call in a context allocates; StateError when its stream is being captured.
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

/// Says that this block has written its part of a tile, of which there are `tiles` with `parts` parts each. In the
/// block that is the last to say so f(tile) runs and sees all of them. Beyond kTickets tiles several share a ticket,
/// and f runs for each of them. All threads of the block call it.
template <class F>
__device__ void when_last(unsigned* tickets, std::int64_t tile, std::int64_t tiles, std::int64_t parts, F f) {
  LOCKSTEP_SHARED(bool, last, [1]);
  const std::int64_t group = tile % kTickets;
  __syncthreads();
  if (threadIdx.x == 0) {
    const std::int64_t all = (tiles - group + kTickets - 1) / kTickets * parts;
    unsigned drawn = 0;
    // Fences: what the block has written is seen before its ticket, and what the others have written after the last
    // one.
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

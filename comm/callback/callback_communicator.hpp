#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Collectives that a host program provides for its own ranks, made with another MPI, threads or sockets. All ranks
/// call the same functions in the same order. A function returns after its operation is complete, and throws on
/// failure. Its exception passes through the communicator unchanged.
struct HostCollectives {
  int rank = 0;
  int size = 1;
  /// In place: `data` (contiguous, on the CPU) becomes the sum over the ranks, with the same bits on every rank.
  std::function<void(const TensorView& data)> all_reduce;
  std::function<void(void* data, std::size_t bytes, int root)> broadcast;
  /// Writes every rank's `in` (`bytes` bytes) to `out` (size * bytes bytes), in rank order.
  std::function<void(const void* in, void* out, std::size_t bytes)> all_gather;
  std::function<void()> barrier;
};

/// Makes a communicator over the host program's functions, which run in the thread that calls the communicator. It
/// takes tensors on the CPU, and inline streams only (StateError). reduce_scatter and all_to_all use all_reduce and
/// all_gather and allocate memory; send, recv and split throw UnsupportedError. UsageError for a missing function or a
/// rank outside 0 .. size - 1.
[[nodiscard]] std::unique_ptr<Communicator> make_callback_communicator(HostCollectives collectives);

}  // namespace lockstep::comm

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Collective operations that a host program provides for its own ranks. The host program may implement them with
/// another MPI, with threads or with sockets. All ranks must call the same functions in the same order. Each function
/// returns when its operation is complete, and throws an exception on failure; the communicator passes the exception on
/// unchanged.
struct HostCollectives {
  int rank = 0;
  int size = 1;
  /// Replaces `data` (contiguous, on the CPU) by its sum over the ranks, with the same bits on every rank.
  std::function<void(const TensorView& data)> all_reduce;
  std::function<void(void* data, std::size_t bytes, int root)> broadcast;
  /// Writes the `bytes` bytes at `in` of every rank to `out` (size * bytes bytes) on all ranks, in the order of ranks.
  std::function<void(const void* in, void* out, std::size_t bytes)> all_gather;
  std::function<void()> barrier;
};

/// Makes a communicator that calls the functions in `collectives`, in the thread that calls the communicator. Throws
/// UsageError if a function is missing or if collectives.rank is not in 0 .. size - 1.
///
/// The communicator takes only tensors on the CPU and inline streams (which run work in the calling thread). An
/// operation on any other stream throws StateError. reduce_scatter() and all_to_all() allocate memory and call
/// all_reduce and all_gather. send(), recv() and split() throw UnsupportedError.
[[nodiscard]] std::unique_ptr<Communicator> make_callback_communicator(HostCollectives collectives);

}  // namespace lockstep::comm

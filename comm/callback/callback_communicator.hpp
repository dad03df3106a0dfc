#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// What a host program brings for ranks of its own: another MPI, threads, sockets. All ranks call the same functions in
/// the same order. Each is over when it returns, and throws when it fails: what it throws goes on unchanged.
struct HostCollectives {
  int rank = 0;
  int size = 1;
  /// The tensor (contiguous, on the CPU) becomes the sum over the ranks, the same bits on each of them.
  std::function<void(const TensorView& data)> all_reduce;
  std::function<void(void* data, std::size_t bytes, int root)> broadcast;
  /// out (size * bytes) holds what every rank gave, in rank order.
  std::function<void(const void* in, void* out, std::size_t bytes)> all_gather;
  std::function<void()> barrier;
};

/// A communicator over the host program's functions, which are called in the thread that calls the communicator.
/// Tensors on the CPU, inline streams (StateError otherwise). reduce_scatter and all_to_all are made of all_reduce and
/// all_gather and take memory for it; send, recv and split are UnsupportedErrors. UsageError for a function that is
/// missing or a rank outside the size.
[[nodiscard]] std::unique_ptr<Communicator> make_callback_communicator(HostCollectives collectives);

}  // namespace lockstep::comm

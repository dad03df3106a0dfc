#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// What passed through a communicator since it was made (this rank's view): calls, the captured ones included; launches
/// of a graph that holds them do not count.
struct CommunicatorCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< of the input tensors
};

/// A fixed group of ranks that exchange tensors. Every operation is enqueued on the stream that is passed and returns
/// at once (an inline stream makes it blocking); all ranks must call the same operations in the same order with the
/// same sizes and types, which is not checked here. The reduction is a sum, in rank order as far as the backend
/// decides; averaging is folded into the caller's scale. Tensors are contiguous (ShapeError), on a device that the
/// backend takes (DeviceError), and stay alive until the stream has passed the operation; counts beyond 2^31 elements
/// work. Sums: all types but u8 (DTypeError); those of bf16 and f16 are rounded at every addition; everything else
/// moves any type. One thread at a time uses a communicator. A failed operation throws MpiError / PeerError: on an
/// inline stream here, on a worker at the stream's next use; on a CUDA stream NcclError, here or from check(). Streams
/// have passed all operations when the communicator is destroyed.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// "local", "mpi", "nccl"
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// True when operations may run on a host worker while the calling thread computes or communicates elsewhere
  /// (MPI: thread level MULTIPLE, or SERIALIZED with a worker, comm/mpi/mpi_communicator.hpp). False: only inline
  /// streams are taken (StateError otherwise).
  [[nodiscard]] virtual bool can_overlap() const = 0;
  /// True when another communicator of the process may be used by another thread at the same time, each on a stream of
  /// its own (MPI: thread level MULTIPLE; with SERIALIZED one thread at a time makes MPI calls, and threads would
  /// mix their order).
  [[nodiscard]] virtual bool any_thread() const { return can_overlap(); }

  /// True when operations may be captured from a CUDA stream into a Graph (runtime/stream/graph.hpp) and be launched
  /// again.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }

  virtual void all_reduce(Stream& stream, const TensorView& data) = 0;  ///< in place: data = sum over ranks
  /// out (n) = the rank-th n elements of the sum over ranks of in (size() * n); no overlap
  virtual void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// out (size() * n) = the ranks' in (n), in rank order. in may be the rank-th part of out.
  virtual void all_gather(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// The r-th n elements of in (size() * n) go to rank r; out holds what came from each rank, in rank order; no
  /// overlap.
  virtual void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(Stream& stream, const TensorView& data, int root) = 0;
  virtual void barrier(Stream& stream) = 0;
  /// Passes when the receiver has taken the data (synchronous: two ranks that send to each other first wait for ever).
  virtual void send(Stream& stream, const TensorView& data, int to) = 0;
  virtual void recv(Stream& stream, const TensorView& data, int from) = 0;
  /// Collective and blocking, with no operation under way: ranks with the same color (0 or more) form a new
  /// communicator, ordered by key, then by rank here.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Throws when the communicator has failed while its operations run on a device; does not wait. Called again and
  /// again by whoever waits for such operations (comm/wait.hpp); host communicators have nothing to say here.
  virtual void check() {}

  [[nodiscard]] virtual CommunicatorCounts counts() const = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

}  // namespace lockstep::comm

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Operations that this rank has called on a communicator since it was made. A captured call counts once; launches of
/// its graph do not count.
struct CommunicatorCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< bytes of the input tensors
};

/// A fixed group of ranks that exchange tensors. Every operation is enqueued on the stream that is passed and returns
/// at once; on an inline stream it blocks. All ranks must call the same operations in the same order with the same
/// sizes and types; the communicator does not check this.
///
/// The reduction is a sum, in rank order where the backend decides the order. Callers that need a mean put the factor
/// into their scale. All types but u8 can be summed (DTypeError); bf16 and f16 sums are rounded at every addition.
/// Operations that only move data take any type. Tensors must be contiguous (ShapeError) and on a device that the
/// backend takes (DeviceError); they stay alive until the stream has passed the operation. Counts beyond 2^31 elements
/// work.
///
/// One thread at a time uses a communicator. A failed operation throws MpiError or PeerError: from the call on an
/// inline stream, at the stream's next use on a worker. On a CUDA stream it throws NcclError, from the call or from
/// check(). Streams must have passed all operations before the communicator is destroyed.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// "local", "callback", "mpi", "gloo", "nccl"
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// True when operations may run on a host worker while the calling thread computes or communicates elsewhere (MPI:
  /// thread level MULTIPLE, or SERIALIZED with a worker; comm/mpi/mpi_communicator.hpp). False: the communicator takes
  /// only inline streams (StateError otherwise).
  [[nodiscard]] virtual bool can_overlap() const = 0;
  /// True when another thread may use another communicator of the process at the same time, each on its own stream.
  /// With MPI: true at thread level MULTIPLE. At SERIALIZED only one thread at a time makes MPI calls, and two threads
  /// would mix the order of their calls.
  [[nodiscard]] virtual bool any_thread() const { return can_overlap(); }

  /// True when a Graph (runtime/stream/graph.hpp) may capture operations from a CUDA stream and launch them again.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }

  virtual void all_reduce(Stream& stream, const TensorView& data) = 0;  ///< in place: data = sum of data over the ranks
  /// out (n) = the rank-th n elements of the sum over ranks of in (size() * n). out may be the rank-th part of in; the
  /// other parts of in stay as they are.
  virtual void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// out (size() * n) = every rank's in (n), in rank order. in may be the rank-th part of out.
  virtual void all_gather(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Block r (n elements) of in (size() * n) goes to rank r; block r of out comes from rank r; no overlap.
  virtual void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(Stream& stream, const TensorView& data, int root) = 0;
  virtual void barrier(Stream& stream) = 0;
  /// The stream passes a send when the receiver has taken the data. Two ranks that both send to each other first wait
  /// for ever.
  virtual void send(Stream& stream, const TensorView& data, int to) = 0;
  virtual void recv(Stream& stream, const TensorView& data, int from) = 0;
  /// Returns a new communicator of the ranks that pass the same color (0 or more), ordered by key, then by rank here.
  /// Collective and blocking, with no operation under way.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Throws when the communicator has failed while its operations run on a device; does not wait. comm::wait() calls
  /// check() repeatedly (comm/wait.hpp). Host communicators do nothing.
  virtual void check() {}

  [[nodiscard]] virtual CommunicatorCounts counts() const = 0;

  /// Returns memory on the communicator's device for tensors that ranks exchange often, such as gradients. NCCL's
  /// memory comes from ncclMemAlloc() and is registered with the communicator (ncclCommRegister), so that switches and
  /// network cards reach it without a copy. Memory that NCCL fails to register is used all the same. allocate() and
  /// deallocate() block the device and wait for the stream: use them for memory that lives as long as the training.
  /// Returns nullptr where any memory is as good: on hosts, with an adopted ncclComm_t or NCCL before 2.19. Not
  /// collective. The communicator must outlive the resource, and the resource its memory. OutOfMemory when NCCL has
  /// none.
  [[nodiscard]] virtual std::unique_ptr<MemoryResource> exchange_memory() { return nullptr; }

  /// Returns the communicator inside a wrapper that only records or forwards calls; any other communicator returns
  /// itself.
  [[nodiscard]] virtual Communicator& unwrapped() { return *this; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

}  // namespace lockstep::comm

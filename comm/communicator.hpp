#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// The operations of a communicator since it was made, as this rank sees them. A captured call counts once; launches of
/// its graph do not count.
struct CommunicatorCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< of the input tensors
};

/// A fixed group of ranks that exchange tensors. Every operation is enqueued on the stream that is passed and returns
/// at once; on an inline stream it blocks. All ranks must call the same operations in the same order with the same
/// sizes and types; this is not checked here.
///
/// The reduction is a sum, in rank order where the backend decides the order; callers fold averaging into their scale.
/// All types but u8 can be summed (DTypeError); bf16 and f16 sums are rounded at every addition. Operations that only
/// move data take any type. Tensors are contiguous (ShapeError), on a device that the backend takes (DeviceError), and
/// stay alive until the stream has passed the operation. Counts beyond 2^31 elements work.
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
  /// thread level MULTIPLE, or SERIALIZED with a worker; comm/mpi/mpi_communicator.hpp). False: only inline streams are
  /// taken (StateError otherwise).
  [[nodiscard]] virtual bool can_overlap() const = 0;
  /// True when another thread may use another communicator of the process at the same time, each on its own stream.
  /// MPI: thread level MULTIPLE; at SERIALIZED only one thread at a time makes MPI calls, and threads would mix their
  /// order.
  [[nodiscard]] virtual bool any_thread() const { return can_overlap(); }

  /// True when a Graph (runtime/stream/graph.hpp) may capture operations from a CUDA stream and launch them again.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }

  virtual void all_reduce(Stream& stream, const TensorView& data) = 0;  ///< in place: data = sum over ranks
  /// out (n) = the rank-th n elements of the sum over ranks of in (size() * n). out may be the rank-th part of in; the
  /// other parts of in stay as they are.
  virtual void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// out (size() * n) = every rank's in (n), in rank order. in may be the rank-th part of out.
  virtual void all_gather(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Block r (n elements) of in (size() * n) goes to rank r; block r of out comes from rank r; no overlap.
  virtual void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(Stream& stream, const TensorView& data, int root) = 0;
  virtual void barrier(Stream& stream) = 0;
  /// The stream passes this when the receiver has taken the data (synchronous: two ranks that both send first wait for
  /// ever).
  virtual void send(Stream& stream, const TensorView& data, int to) = 0;
  virtual void recv(Stream& stream, const TensorView& data, int from) = 0;
  /// Collective and blocking, with no operation under way. Ranks with the same color (0 or more) form a new
  /// communicator, ordered by key, then by rank here.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Throws when the communicator has failed while its operations run on a device; does not wait. comm::wait() calls it
  /// again and again (comm/wait.hpp). Does nothing on host communicators.
  virtual void check() {}

  [[nodiscard]] virtual CommunicatorCounts counts() const = 0;

  /// Memory for tensors that the ranks exchange often, as gradients, on the device of this communicator. NCCL's is of
  /// ncclMemAlloc() and registered with the communicator (ncclCommRegister), so that switches and network cards reach
  /// it without a copy; memory that NCCL does not register is used all the same. For what lives as long as a program
  /// trains: allocate() and deallocate() block the device, and wait for the stream. nullptr where any memory is as
  /// good: on hosts, with an adopted ncclComm_t or NCCL before 2.19. Ranks call on their own. The communicator outlives
  /// what this returns, and this the memory. OutOfMemory when NCCL has none.
  [[nodiscard]] virtual std::unique_ptr<MemoryResource> exchange_memory() { return nullptr; }

  /// The communicator behind one that only notes or hands on what is called; else this one.
  [[nodiscard]] virtual Communicator& unwrapped() { return *this; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

}  // namespace lockstep::comm

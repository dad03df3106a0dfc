#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Operations that this rank has called on a communicator since the communicator was made. A captured call counts once;
/// launches of its graph do not count.
struct CommunicatorCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< total size of the input tensors in bytes
};

/// A fixed group of ranks that exchange tensors. Every operation is enqueued on the given stream and returns at once;
/// on an inline stream it blocks. All ranks must call the same operations in the same order with the same sizes and
/// types; the communicator does not check this.
///
/// The reduction is a sum. If the backend decides the order of additions, it is rank order. Callers that need a mean
/// put the factor into their scale. All types but u8 can be summed (DTypeError); bf16 and f16 sums are rounded at every
/// addition. Operations that only move data take any type. Tensors must be contiguous (ShapeError) and on a device that
/// the backend takes (DeviceError). They must stay alive until the stream has passed the operation. Counts beyond 2^31
/// elements work.
///
/// One thread at a time may use a communicator. A failed operation throws MpiError or PeerError: the call itself throws
/// on an inline stream, the stream's next use throws for a worker. On a CUDA stream, the call or check() throws
/// NcclError. Streams must have passed all operations before the communicator is destroyed.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Returns the backend's name: "local", "callback", "mpi", "gloo" or "nccl".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// Returns true if operations may run on a host worker while the calling thread computes or communicates elsewhere.
  /// MPI needs thread level MULTIPLE, or SERIALIZED with a worker (comm/mpi/mpi_communicator.hpp). If false, the
  /// communicator takes only inline streams (StateError otherwise).
  [[nodiscard]] virtual bool can_overlap() const = 0;
  /// Returns true if another thread may use another communicator of the process at the same time, each on its own
  /// stream. With MPI this needs thread level MULTIPLE. At SERIALIZED only one thread at a time makes MPI calls, and
  /// two threads would mix the order of their calls.
  [[nodiscard]] virtual bool any_thread() const { return can_overlap(); }

  /// Returns true if a Graph (runtime/stream/graph.hpp) may capture operations of a CUDA stream and launch them again.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }

  /// In place: data = sum of `data` over the ranks.
  virtual void all_reduce(Stream& stream, const TensorView& data) = 0;
  /// Sums `in` (size() * n elements) over the ranks; `out` (n elements) gets this rank's part of the sum, part number
  /// rank(). `out` may be that part of `in`; the other parts of `in` do not change.
  virtual void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Writes every rank's `in` (n elements) to `out` (size() * n), in rank order. `in` may be part rank() of `out`.
  virtual void all_gather(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Sends block r (n elements) of `in` (size() * n elements) to rank r, and receives block r of `out` from rank r. The
  /// tensors must not overlap.
  virtual void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(Stream& stream, const TensorView& data, int root) = 0;
  virtual void barrier(Stream& stream) = 0;
  /// The stream passes a send after the receiver has taken the data. Two ranks that first send to each other wait for
  /// ever.
  virtual void send(Stream& stream, const TensorView& data, int to) = 0;
  virtual void recv(Stream& stream, const TensorView& data, int from) = 0;
  /// Returns a new communicator of the ranks that pass the same color (0 or more). Its ranks are ordered by key, then
  /// by rank in this communicator. Collective and blocking, with no operation under way.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Throws if the communicator has failed while its operations run on a device; does not wait. comm::wait() calls
  /// check() repeatedly (comm/wait.hpp). Communicators of hosts do nothing here.
  virtual void check() {}

  [[nodiscard]] virtual CommunicatorCounts counts() const = 0;

  /// Returns memory on the communicator's device for tensors that ranks exchange often, such as gradients. NCCL's
  /// memory comes from ncclMemAlloc() and is registered with the communicator (ncclCommRegister), so that switches and
  /// network cards reach it without a copy. If the registration fails, the memory is used without it. allocate() and
  /// deallocate() block the device and wait for the stream, so use them for memory that lives as long as the training.
  /// Returns nullptr if such memory has no advantage: on hosts, with an adopted ncclComm_t, or with NCCL before 2.19.
  /// Not collective. The communicator must outlive the resource, and the resource its memory. allocate()
  /// throws OutOfMemory if NCCL has none.
  [[nodiscard]] virtual std::unique_ptr<MemoryResource> exchange_memory() { return nullptr; }

  /// Returns the communicator inside a wrapper that only records or forwards calls; otherwise returns itself.
  [[nodiscard]] virtual Communicator& unwrapped() { return *this; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

}  // namespace lockstep::comm

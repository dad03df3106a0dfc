#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Counts of the operations that this rank has called on a communicator since the communicator was made. A call that a
/// graph captures counts once; launches of that graph do not count.
struct CommunicatorCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< total size of the input tensors in bytes
};

/// A fixed group of ranks that exchange tensors. Every operation is enqueued on the given stream and returns at once;
/// on an inline stream, which runs work in the calling thread, the operation blocks. All ranks must call the same
/// operations in the same order with the same sizes and types; the communicator does not check this.
///
/// Operations that reduce compute sums. lockstep itself adds in rank order; libraries such as NCCL choose their own
/// order. Callers that need a mean must scale the sum themselves. Sums of u8 throw DTypeError; bf16 and f16 sums are
/// rounded at every addition. Operations that only move data take any type.
///
/// Tensors must be contiguous (otherwise ShapeError) and on a device that the backend takes (otherwise DeviceError).
/// Tensors must stay alive until the operation is complete on its stream. Tensors may have more than 2^31 elements.
///
/// Only one thread at a time may use a communicator. All operations must be complete before the communicator is
/// destroyed. If an operation on an inline stream fails, the call itself throws MpiError or PeerError. On a host stream
/// with a worker, the next use of the stream throws this error. On a CUDA stream, the call or check() throws NcclError.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Returns the backend's name: "local", "callback", "mpi", "gloo" or "nccl".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// Returns true if a host worker (a stream with its own thread) may run operations of this communicator while the
  /// calling thread computes or communicates elsewhere. With MPI, this needs thread level MULTIPLE, or level SERIALIZED
  /// with MpiOptions::sole_mpi_worker (comm/mpi/mpi_communicator.hpp). If false, operations on streams that are not
  /// inline throw StateError.
  [[nodiscard]] virtual bool can_overlap() const = 0;
  /// Returns true if one thread may use this communicator while another thread uses another communicator of the
  /// process, each thread on its own stream. With MPI, this needs thread level MULTIPLE.
  [[nodiscard]] virtual bool any_thread() const { return can_overlap(); }

  /// Returns true if a Graph (runtime/stream/graph.hpp) may capture operations of this communicator and launch them.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }

  /// Replaces `data` by its sum over the ranks, on every rank.
  virtual void all_reduce(Stream& stream, const TensorView& data) = 0;
  /// Sums `in` (size() * n elements) over the ranks, and writes part number rank() of the sum to `out` (n elements).
  /// `out` may be part number rank() of `in`; the other parts of `in` do not change.
  virtual void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Writes the `in` of rank r (n elements) to part r of `out` (size() * n elements). `in` may be part rank() of `out`.
  virtual void all_gather(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  /// Sends block r (n elements) of `in` (size() * n elements) to rank r, and receives block r of `out` from rank r. The
  /// tensors must not overlap.
  virtual void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(Stream& stream, const TensorView& data, int root) = 0;
  virtual void barrier(Stream& stream) = 0;
  /// Sends `data` to rank `to`. The send is complete only after the receiver has received the data. So two ranks
  /// that both send before they receive wait for ever.
  virtual void send(Stream& stream, const TensorView& data, int to) = 0;
  virtual void recv(Stream& stream, const TensorView& data, int from) = 0;
  /// Returns a new communicator of the ranks that pass the same color (0 or more). Its ranks are ordered by key, then
  /// by rank in this communicator. Collective and blocking; no operation of this communicator may be under way.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Throws if an operation that this communicator runs on a device has failed; does not wait. comm::wait() calls
  /// check() repeatedly (comm/wait.hpp). Communicators for host tensors do nothing here.
  virtual void check() {}

  [[nodiscard]] virtual CommunicatorCounts counts() const = 0;

  /// Returns a source of memory on the communicator's device, for tensors that ranks exchange often, such as gradients.
  /// With NCCL, its memory comes from ncclMemAlloc() and is registered with the communicator (ncclCommRegister), so
  /// that switches and network cards reach it without a copy. If the registration fails, the memory is used
  /// unregistered. MemoryResource::allocate() and deallocate() wait for the device and are slow: allocate before the
  /// first step, and deallocate after the last step. allocate() throws OutOfMemory if NCCL has no memory left.
  ///
  /// Returns nullptr if such memory has no advantage: on hosts, with an adopted ncclComm_t, or with NCCL before 2.19.
  /// Not collective. The communicator must outlive the MemoryResource, and the MemoryResource must outlive its memory.
  [[nodiscard]] virtual std::unique_ptr<MemoryResource> exchange_memory() { return nullptr; }

  /// Returns the inner communicator of a wrapper that only records or forwards calls; other objects return themselves.
  [[nodiscard]] virtual Communicator& unwrapped() { return *this; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

}  // namespace lockstep::comm

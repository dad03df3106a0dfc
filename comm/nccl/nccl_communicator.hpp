#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include <nccl.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/nccl/nccl_exchange.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::comm {

/// Every owner of an ncclComm_t keeps this to the communicator's end: NCCL copies the pointer to the communicator's
/// name, not the name (2.28.9, src/init.cc, parseCommConfig), and profilers may print it when the communicator ends.
/// When no thread can be started for an abort, the communicator never ends, and its options may go.
using SharedNcclOptions = std::shared_ptr<const NcclOptions>;

/// Runs ncclCommAbort() on a thread of its own, which may outlive this object. NCCL first ends the kernels that wait
/// for other ranks, then waits, without a limit, until every CUDA graph that captured an operation of the communicator
/// is destroyed (NCCL 2.28.9, src/init.cc, commDestroySync).
class NcclAbort {
 public:
  NcclAbort(ncclComm_t comm, Device device, SharedNcclOptions options) noexcept;
  ~NcclAbort();
  NcclAbort(const NcclAbort&) = delete;
  NcclAbort& operator=(const NcclAbort&) = delete;
  void wait(double seconds) noexcept;  ///< until it is complete, for at most this long

 private:
  std::future<void> over_;
  std::thread thread_;
};

/// Whether the calls of a communicator block until NCCL has done its part, or return at once.
enum class Calls : bool { return_at_once, block };

/// One rank of an NCCL communicator of our own, made with blocking = 0 (1 for estimates). After an error it is aborted.
class NcclCommunicator final : public NcclExchange {
 public:
  /// Takes an ncclComm_t that is ready.
  NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options);
  ~NcclCommunicator() override;

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override;
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override;
  [[nodiscard]] std::unique_ptr<NcclCommunicator> split(int color, int key, Calls calls);

  /// The device of its tensors.
  [[nodiscard]] Device place() const { return device(); }
  /// Tells NCCL of memory of ncclMemAlloc(). Returns NCCL's handle; nullptr when it does not register the memory.
  [[nodiscard]] void* register_memory(void* data, std::size_t bytes) noexcept;
  void deregister_memory(void* handle) noexcept;  ///< nothing to do once the communicator was given up

  /// NcclEstimator::seconds(), for a communicator whose calls block.
  [[nodiscard]] std::optional<double> estimate(const std::function<void(Communicator&)>& f);

 private:
  void give_up(ncclComm_t comm) noexcept override;
  void abort(ncclComm_t comm) noexcept;  ///< starts the abort and waits a short time for it

  SharedNcclOptions options_;
  bool estimating_ = false;  ///< a group is open that will not be executed
  std::optional<NcclAbort> abort_;
  int uncaught_;
};

}  // namespace lockstep::comm

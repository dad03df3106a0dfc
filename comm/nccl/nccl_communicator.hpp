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

/// Options that every owner of an ncclComm_t keeps until the communicator ends. NCCL copies the pointer to the
/// communicator's name, not the name (2.28.9, src/init.cc, parseCommConfig), and profilers may print the name when the
/// communicator ends. If no thread can start for an abort, the communicator never ends, and its options may be freed.
using SharedNcclOptions = std::shared_ptr<const NcclOptions>;

/// Runs ncclCommAbort() on its own thread, which may outlive this object. NCCL first ends the kernels that wait for
/// other ranks. Then NCCL waits, without a limit, until every CUDA graph that captured an operation of the communicator
/// is destroyed (NCCL 2.28.9, src/init.cc, commDestroySync).
class NcclAbort {
 public:
  NcclAbort(ncclComm_t comm, Device device, SharedNcclOptions options) noexcept;
  ~NcclAbort();
  NcclAbort(const NcclAbort&) = delete;
  NcclAbort& operator=(const NcclAbort&) = delete;
  void wait(double seconds) noexcept;  ///< waits until the abort is complete, at most `seconds`

 private:
  std::future<void> over_;
  std::thread thread_;
};

/// Says whether a communicator's calls block until NCCL has done its part, or return at once.
enum class Calls : bool { return_at_once, block };

/// One rank of an NCCL communicator that lockstep made with blocking = 0 (1 for estimates). An error aborts it.
class NcclCommunicator final : public NcclExchange {
 public:
  /// Takes ownership of an ncclComm_t that is ready.
  NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options);
  ~NcclCommunicator() override;

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override;
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override;
  [[nodiscard]] std::unique_ptr<NcclCommunicator> split(int color, int key, Calls calls);

  /// Returns the device of the communicator's tensors.
  [[nodiscard]] Device place() const { return device(); }
  /// Registers memory of ncclMemAlloc() with NCCL. Returns NCCL's handle, or nullptr if NCCL does not register it.
  [[nodiscard]] void* register_memory(void* data, std::size_t bytes) noexcept;
  void deregister_memory(void* handle) noexcept;  ///< does nothing after the communicator was given up

  /// Returns an estimate like NcclEstimator::seconds(), for a communicator whose calls block.
  [[nodiscard]] std::optional<double> estimate(const std::function<void(Communicator&)>& f);

 private:
  void give_up(ncclComm_t comm) noexcept override;
  void abort(ncclComm_t comm) noexcept;  ///< starts the abort and waits a short time for it

  SharedNcclOptions options_;
  bool estimating_ = false;  ///< true while a group is open that must not be executed
  std::optional<NcclAbort> abort_;
  int uncaught_;
};

}  // namespace lockstep::comm

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

/// Options that every owner of an ncclComm_t keeps until the communicator ends. NCCL copies only the pointer to the
/// communicator's name (2.28.9, src/init.cc, parseCommConfig), and profilers may print the name when the communicator
/// ends. So the name must live until the communicator has ended. If no thread can start for an abort, the communicator
/// never ends, and its options may be freed.
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

/// Says whether NCCL calls on a communicator block until NCCL's work on the host is complete, or return at once
/// (ncclConfig_t::blocking).
enum class Calls : bool { return_at_once, block };

/// One rank of an NCCL communicator that lockstep made. Its calls block only if the communicator is for estimates
/// (ncclConfig_t::blocking is 0 otherwise). An error aborts the communicator.
class NcclCommunicator final : public NcclExchange {
 public:
  /// Takes ownership of `comm`, on which no call may be in progress.
  NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options);
  ~NcclCommunicator() override;

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override;
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override;
  [[nodiscard]] std::unique_ptr<NcclCommunicator> split(int color, int key, Calls calls);

  /// Returns the device of the communicator's tensors.
  [[nodiscard]] Device place() const { return device(); }
  /// Registers memory that ncclMemAlloc() has allocated. Returns NCCL's handle, or nullptr if NCCL refuses the memory.
  [[nodiscard]] void* register_memory(void* data, std::size_t bytes) noexcept;
  void deregister_memory(void* handle) noexcept;  ///< does nothing after the communicator has failed

  /// Does the work of NcclEstimator::seconds(). The communicator's calls must block (Calls::block).
  [[nodiscard]] std::optional<double> estimate(const std::function<void(Communicator&)>& f);

 private:
  void give_up(ncclComm_t comm) noexcept override;
  void abort(ncclComm_t comm) noexcept;  ///< starts the abort and waits a short time for it

  SharedNcclOptions options_;
  bool estimating_ = false;  ///< true while estimate() has an NCCL group open, which must not be executed
  std::optional<NcclAbort> abort_;
  int uncaught_;
};

}  // namespace lockstep::comm

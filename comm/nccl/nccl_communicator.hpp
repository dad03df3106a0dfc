#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include <nccl.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

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

/// One rank of an NCCL communicator that was made with blocking = 0 (1 for estimates). A call may answer that it is in
/// progress; until it is complete NCCL accepts no other call, so the calling thread polls with a deadline. After an
/// error the communicator is aborted, and every call throws that error.
class NcclCommunicator final : public Communicator {
 public:
  /// Takes an ncclComm_t that is ready.
  NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options);
  ~NcclCommunicator() override;

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool can_overlap() const override { return true; }
  /// NCCL requires one thread to enqueue the operations of all communicators of a device, in the same order on all
  /// ranks.
  [[nodiscard]] bool any_thread() const override { return false; }
  /// Destroy graphs before the communicator: while one lives, its destructor waits for timeout_s and then aborts.
  [[nodiscard]] bool can_be_captured() const override { return true; }

  void all_reduce(Stream& stream, const TensorView& data) override;
  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override;
  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override;
  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override;
  void broadcast(Stream& stream, const TensorView& data, int root) override;
  void barrier(Stream& stream) override;
  void send(Stream& stream, const TensorView& data, int to) override;
  void recv(Stream& stream, const TensorView& data, int from) override;
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override;
  [[nodiscard]] std::unique_ptr<NcclCommunicator> split(int color, int key, Calls calls);
  void check() override;
  [[nodiscard]] CommunicatorCounts counts() const override { return counts_; }

  /// Runs a small all-reduce and waits for it, so that connections exist before a graph is captured.
  void first_operation();

  /// NcclEstimator::seconds(), for a communicator whose calls block.
  [[nodiscard]] std::optional<double> estimate(const std::function<void(Communicator&)>& f);

 private:
  /// Calls NCCL with the device current, waits while the call is in progress, and counts it. call: ncclResult_t().
  template <class Call>
  void run(std::string_view op, const TensorView& data, Call&& call);
  void require_alive(std::string_view op) const;
  /// Waits until the result is success or an error; ncclInProgress when the time is over.
  [[nodiscard]] ncclResult_t settled(ncclResult_t result);
  [[noreturn]] void fail(const std::string& what, ncclResult_t result);
  void abort() noexcept;  ///< starts the abort and waits a short time for it

  ncclComm_t comm_;  ///< null once aborted
  Device device_;
  SharedNcclOptions options_;
  CudaContext own_;  ///< for first_operation()
  Tensor scratch_;   ///< (1) i32: the element that a barrier sums
  std::string failure_;
  CommunicatorCounts counts_;
  bool estimating_ = false;  ///< a group is open that will not be executed
  std::optional<NcclAbort> abort_;
  int uncaught_;
};

}  // namespace lockstep::comm

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

/// Kept by whoever holds an ncclComm_t, to its end: NCCL copies the pointer to the communicator's name, not the name
/// (2.28.9, src/init.cc, parseCommConfig), and hands it to profilers, which may print it when the communicator ends. An
/// abort for which no thread can be had leaves its communicator without them; it never ends then.
using SharedNcclOptions = std::shared_ptr<const NcclOptions>;

/// ncclCommAbort() on a thread of its own, which may outlive this: it first ends the kernels that wait for other ranks,
/// and then waits, without an end, for every CUDA graph that captured an operation of the communicator to be gone
/// (NCCL 2.28.9, src/init.cc, commDestroySync).
class NcclAbort {
 public:
  NcclAbort(ncclComm_t comm, Device device, SharedNcclOptions options) noexcept;
  ~NcclAbort();
  NcclAbort(const NcclAbort&) = delete;
  NcclAbort& operator=(const NcclAbort&) = delete;
  void wait(double seconds) noexcept;  ///< until it is over, at most so long

 private:
  std::future<void> over_;
  std::thread thread_;
};

/// Do the calls of a communicator return when NCCL has done its part, or at once?
enum class Calls : bool { return_at_once, block };

/// One rank's end of an NCCL communicator that was made with blocking = 0 (one for estimates: 1). Every call may answer
/// that it is in progress; until it is not, nothing else may be asked of NCCL, so the calling thread polls with a
/// deadline. After an error the communicator is aborted and every call throws what was wrong.
class NcclCommunicator final : public Communicator {
 public:
  /// Takes an ncclComm_t that is ready.
  NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options);
  ~NcclCommunicator() override;

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool can_overlap() const override { return true; }
  /// NCCL wants the operations of all communicators of a device enqueued by one thread, in one order on all ranks.
  [[nodiscard]] bool any_thread() const override { return false; }
  /// Graphs must go before the communicator: with one alive its end waits for timeout_s and then aborts.
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

  /// A small all-reduce that every rank waits for: connections are made before somebody captures a graph.
  void first_operation();

  /// NcclEstimator::seconds(), of a communicator whose calls block.
  [[nodiscard]] std::optional<double> estimate(const std::function<void(Communicator&)>& f);

 private:
  /// Calls NCCL with the device current, waits while the call is in progress, counts. call: ncclResult_t().
  template <class Call>
  void run(std::string_view op, const TensorView& data, Call&& call);
  void require_alive(std::string_view op) const;
  /// Success or an error; in progress when the time is over.
  [[nodiscard]] ncclResult_t settled(ncclResult_t result);
  [[noreturn]] void fail(const std::string& what, ncclResult_t result);
  void abort() noexcept;  ///< begins it, and waits a little

  ncclComm_t comm_;  ///< null once it was aborted
  Device device_;
  SharedNcclOptions options_;
  CudaContext own_;  ///< for first_operation()
  Tensor scratch_;   ///< (1) i32: what a barrier adds up
  std::string failure_;
  CommunicatorCounts counts_;
  bool estimating_ = false;  ///< a group is open that is not to be executed
  std::optional<NcclAbort> abort_;
  int uncaught_;
};

}  // namespace lockstep::comm

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nccl.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::comm {

/// Functions of one NCCL library that exchange tensors. The library is NCCL as linked to lockstep, or the NCCL that
/// made a host program's communicator. Each communicator is used only with the library that made it.
struct NcclFunctions {
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;

  /// Returns NCCL's text for `result`, and NCCL's last message. The message may be about an older error, because
  /// NCCL has one last message for the whole process and never clears it.
  [[nodiscard]] std::string words(ncclResult_t result) const;
  /// Waits until no call on `comm` is in progress, and returns the result of ncclCommGetAsyncError(). Returns
  /// ncclInProgress if a call is still in progress after `seconds`. Polling also advances calls in progress, so the
  /// thread that uses the communicator must call poll().
  [[nodiscard]] ncclResult_t poll(ncclComm_t comm, double seconds) const;
  [[nodiscard]] std::string state_text(ncclResult_t result, double timeout_s) const {
    return result == ncclInProgress ? concat("not over after ", timeout_s, " s") : words(result);
  }
};

/// One rank of an NCCL communicator that lockstep or a host program has made. An NCCL call may return ncclInProgress.
/// Until that call is complete, NCCL accepts no other call, so the calling thread polls until a deadline. After an
/// error, give_up() gets the communicator, and every later call throws that error.
class NcclExchange : public Communicator {
 public:
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool can_overlap() const override { return true; }
  /// Returns false: one thread must enqueue the operations of all communicators of a device, in one order on all ranks.
  [[nodiscard]] bool any_thread() const override { return false; }
  /// Returns true. Destroy graphs with captured operations before the communicator: otherwise the destructor of a
  /// communicator of lockstep waits for timeout_s, then aborts.
  [[nodiscard]] bool can_be_captured() const override { return true; }

  void all_reduce(Stream& stream, const TensorView& data) override;
  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override;
  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override;
  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override;
  void broadcast(Stream& stream, const TensorView& data, int root) override;
  void barrier(Stream& stream) override;
  void send(Stream& stream, const TensorView& data, int to) override;
  void recv(Stream& stream, const TensorView& data, int from) override;
  void check() override;
  [[nodiscard]] CommunicatorCounts counts() const override { return counts_; }

  /// Runs a small all-reduce and waits for it, so that connections exist before a graph is captured.
  void first_operation();

 protected:
  /// Takes `comm`, on which no NCCL call may be in progress.
  NcclExchange(const NcclFunctions& functions, ncclComm_t comm, int rank, int size, Device device, double timeout_s);

  /// Called once after an error, with the communicator; comm() is already null then.
  virtual void give_up(ncclComm_t comm) noexcept = 0;

  [[nodiscard]] ncclComm_t comm() const { return comm_; }  ///< null after an error or after release()
  [[nodiscard]] Device device() const { return device_; }
  void require_alive(std::string_view op) const;
  /// Waits while a call that returned `result` is in progress, and returns its end result; ncclInProgress after
  /// timeout_s.
  [[nodiscard]] ncclResult_t settled(ncclResult_t result) const {
    return result == ncclInProgress ? nccl_.poll(comm_, timeout_s_) : result;
  }
  [[noreturn]] void fail(const std::string& what, ncclResult_t result);
  /// Returns the communicator and sets comm() to null, without an error. Returns null if comm() was null before.
  [[nodiscard]] ncclComm_t release() { return std::exchange(comm_, nullptr); }

 private:
  /// Makes the device current and runs `call`, which calls NCCL and returns ncclResult_t. Waits while that NCCL call is
  /// in progress, and counts the call.
  template <class Call>
  void run(std::string_view op, const TensorView& data, Call&& call);

  NcclFunctions nccl_;
  ncclComm_t comm_;
  Device device_;
  double timeout_s_;
  CudaContext own_;  ///< context for first_operation()
  Tensor scratch_;   ///< one i32, which barrier() sums
  std::string failure_;
  CommunicatorCounts counts_;
};

}  // namespace lockstep::comm

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::comm {

struct NcclOptions {
  double timeout_s = 120;         ///< time limit in seconds for each set-up, each split and the destruction
  bool allow_shared_gpu = false;  ///< true: ranks may share a GPU (set_shared_gpu_environment())
  /// Largest number of the GPU's thread blocks that an operation may use (NCCL's maxCTAs, 1 to 64). 0: NCCL decides.
  int most_blocks = 0;
  std::string name = "lockstep";  ///< communicator's name in NCCL's messages
};

/// Makes a communicator of ranks that exchange tensors on their GPUs through NCCL. The new communicator has the ranks
/// of `control`, a communicator for host tensors, which only the set-up uses. `device` is this rank's GPU. Collective
/// and blocking. When the call returns, one small all-reduce has run.
///
/// Operations are enqueued on CUDA streams of `device`, without waiting for the device. The host waits only while NCCL
/// reports a call as in progress (NCCL connects at first use). All operations of a communicator must go to one stream,
/// or to several streams that the caller orders by events. All types but u8 can be summed. bf16 and f16 sums are
/// rounded at every addition, and NCCL decides the order of additions. A graph may capture an operation only after the
/// operation has run once. Destroy graphs before the communicator: NCCL neither ends nor aborts while a graph of its
/// operations lives.
///
/// Errors of the set-up are thrown on all ranks (as CollectiveError). Before NCCL starts:
///   - UsageError if two ranks have the same GPU (the text names both), or if ranks share a GPU but are not all on one
///     host
///   - UsageError if ranks have different versions of NCCL, or if their NCCL has another major version or an older
///     minor version than the NCCL of lockstep's build
///   - DeviceError if a rank has no GPU
/// While NCCL starts:
///   - NcclError if set-up fails on some rank, or does not end in time. The text has that rank, the seconds and NCCL's
///     message
/// In a build without NCCL, the function throws UsageError.
///
/// A failure after the set-up is thrown only on the rank on which it occurs. The operation or check() throws NcclError
/// and aborts the communicator, so that nothing on this GPU waits for other ranks any more. Every later call throws.
///
/// The destructor ends NCCL together with the other ranks. If an exception unwinds the stack, or if ending NCCL takes
/// more than timeout_s, the destructor aborts the communicator instead. The destructor waits at most 2 s for an abort;
/// then the abort continues on its own thread.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, Device device,
                                                                   const NcclOptions& options = {});

/// Wraps `comm`, an ncclComm_t of the host program, for tensors on `device`. `comm` must have the ranks of `control`.
/// The host program keeps the ownership: lockstep neither configures, ends nor aborts `comm`. `comm` must outlive the
/// returned object and every graph that captured an operation of it. lockstep calls the functions of the NCCL that the
/// process has loaded, and need not itself be linked with NCCL. Operations behave as those of make_nccl_communicator(),
/// with three differences. Calls on a `comm` that blocks have no timeout. An error only makes the returned object
/// unusable: work that waits on the GPU continues to wait until the host program aborts `comm`. split() throws
/// UnsupportedError.
///
/// Collective and blocking. When the call returns, one small all-reduce has run. Errors are thrown on all ranks (as
/// CollectiveError):
///   - UsageError if `comm` is nullptr, if its rank or size differs from that of `control`, or if timeout_s is not
///     positive
///   - DeviceError if `device` is no GPU, or if `comm` is on another GPU
///   - UnsupportedError if the process has loaded no NCCL, if the NCCL lacks a function, or if lockstep was built
///     without NCCL's header
///   - NcclError if NCCL fails
[[nodiscard]] std::unique_ptr<Communicator> adopt_nccl_communicator(void* comm, Communicator& control, Device device,
                                                                    double timeout_s = 120);

/// Estimates the time of NCCL operations with the model by which NCCL chooses algorithms: NCCL plans the operation and
/// does not execute it (ncclGroupSimulateEnd). NCCL supports estimates only on communicators whose calls block. So each
/// estimator makes such a communicator of its own; its calls have no timeout. All ranks must use and destroy the
/// estimator together.
class NcclEstimator {
 public:
  virtual ~NcclEstimator() = default;
  NcclEstimator(const NcclEstimator&) = delete;
  NcclEstimator& operator=(const NcclEstimator&) = delete;

  /// Returns the estimated seconds of an operation. `f` must call the operation once, on the communicator that `f` gets
  /// as its argument, on a stream of the device. The operation is an all_reduce, reduce_scatter, all_gather or
  /// broadcast; send and recv cannot be estimated. The tensors are neither read nor written. Returns nullopt if NCCL
  /// has no estimate, as for empty tensors. With only one rank, returns nullopt and does not call `f`. Throws NcclError
  /// and the exceptions of `f`. If the environment sets NCCL_COMM_BLOCKING=0, NCCL executes the operation instead.
  [[nodiscard]] virtual std::optional<double> seconds(const std::function<void(Communicator&)>& f) = 0;

 protected:
  NcclEstimator() = default;
};
/// Makes an estimator for the ranks of `communicator`. Collective and blocking; no operation may be under way. Returns
/// nullptr if the communicator is not NCCL's, NCCL is older than 2.22, or the build has no NCCL. Throws NcclError.
[[nodiscard]] std::unique_ptr<NcclEstimator> make_nccl_estimator(Communicator& communicator);

/// Returns true if this build has NCCL.
[[nodiscard]] bool has_nccl();

/// Reads LOCKSTEP_ALLOW_SHARED_GPU: "1" gives true; unset, "" and "0" give false. Throws UsageError for anything else.
[[nodiscard]] bool shared_gpu_allowed();

/// Returns environment variables that let NCCL run several ranks on one GPU, one process each. NCCL refuses two ranks
/// of one host on the same GPU, so the variables make each rank seem to be on its own host. The ranks then communicate
/// through sockets. This is slow: use it only in tests. A program sets the variables with set_shared_gpu_environment()
/// (comm/launch/rank_device.hpp).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> shared_gpu_environment(int rank);

/// Data of one rank that make_nccl_communicator() gathers and compares before NCCL starts.
struct NcclRank {
  std::string host{};
  std::string gpu{};              ///< UUID of the GPU
  std::string host_id{};          ///< value of NCCL_HOSTID, for ranks that share a GPU
  int version = 0;                ///< version of the NCCL library at run time: 22809 is 2.28.9
  bool allow_shared_gpu = false;  ///< value of NcclOptions::allow_shared_gpu
  std::string failure{};          ///< reason why this rank has no GPU or no NCCL; empty otherwise
};
/// Throws the errors that make_nccl_communicator() throws before NCCL starts. All ranks must pass the same `ranks` and
/// then throw the same error. `built` is the version of NCCL with which lockstep was built.
void check_nccl_ranks(const std::vector<NcclRank>& ranks, int built);

}  // namespace lockstep::comm

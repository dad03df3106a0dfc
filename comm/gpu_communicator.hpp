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
  double timeout_s = 120;         ///< for set-up, split and destruction, each
  bool allow_shared_gpu = false;  ///< two ranks may use one GPU (set_shared_gpu_environment())
  /// The most thread blocks of the GPU that one operation may use (NCCL's maxCTAs, 1 to 64); 0: NCCL decides.
  int most_blocks = 0;
  std::string name = "lockstep";  ///< in NCCL's own messages
};

/// Ranks that exchange tensors on their GPUs through NCCL. The ranks are those of `control`, a communicator for host
/// tensors that set-up uses; after this call it is not used any more. device: this rank's GPU. Collective and blocking.
/// One small all-reduce has run when the call returns.
///
/// Operations are enqueued on CUDA streams of that device and wait for nothing on the device. The host waits only while
/// NCCL says that a call is in progress (it makes connections at first use). All operations of a communicator go to one
/// stream, or to streams that events order. All types but u8 can be summed; bf16 and f16 sums are rounded at every
/// addition, and NCCL decides the order of additions. An operation must have run once before a graph captures it.
/// Destroy graphs before the communicator: NCCL neither ends nor aborts while one lives.
///
/// All ranks find errors of set-up together (CollectiveError). Before NCCL starts: UsageError when two ranks have one
/// GPU (naming both), when ranks that may share a GPU are on several hosts, when versions of NCCL differ, or when NCCL
/// is an older minor version than the one lockstep was built with; DeviceError when a rank has no GPU. Then: NcclError
/// when set-up fails or does not end in time on some rank, with that rank, the seconds and NCCL's message. In a build
/// without NCCL: UsageError on every rank.
///
/// Later failures belong to one rank: the operation or check() throws NcclError, the communicator is aborted, so that
/// nothing on this GPU waits any more, and every later call throws. The destructor ends NCCL together with the other
/// ranks. While an exception unwinds, or when the end takes more than timeout_s, it aborts instead; it waits at most
/// 2 s for an abort, which then continues on its own thread.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, Device device,
                                                                   const NcclOptions& options = {});

/// A communicator of the host program (an ncclComm_t, as void*) for tensors on `device`, whose ranks are those of
/// `control`. It stays the host program's: it is neither configured nor ended nor aborted here, and outlives what this
/// returns, and every graph that captured an operation of it. Its functions are those of the NCCL that the process has
/// loaded; this library need not be linked with one. Operations are as make_nccl_communicator() says; a blocking
/// communicator's calls have no timeout, and after an error this one is given up: what waits on the GPU waits until the
/// host program aborts. split() is an UnsupportedError. Collective and blocking; one small all-reduce has run when it
/// returns. CollectiveError on all ranks: UsageError for no communicator, or one whose ranks or place differ from
/// control's, DeviceError for one on another GPU, UnsupportedError where the process has loaded no NCCL, or in a build
/// without its header, NcclError.
[[nodiscard]] std::unique_ptr<Communicator> adopt_nccl_communicator(void* comm, Communicator& control, Device device,
                                                                    double timeout_s = 120);

/// The time that NCCL expects an operation to take, by the model with which it chooses algorithms: NCCL plans the
/// operation and does not execute it (ncclGroupSimulateEnd). NCCL supports this only on communicators whose calls
/// block, so this has a communicator of its own, whose calls have no timeout. All ranks use and destroy it together.
class NcclEstimator {
 public:
  virtual ~NcclEstimator() = default;
  NcclEstimator(const NcclEstimator&) = delete;
  NcclEstimator& operator=(const NcclEstimator&) = delete;

  /// Seconds of the one operation that `f` calls on the communicator it is given, on a stream of the device: an
  /// all_reduce, reduce_scatter, all_gather or broadcast; messages are not estimated. Nothing is read or written. Empty
  /// where NCCL has no estimate: for one rank (f is then not called) and for empty tensors. Throws NcclError, and what
  /// f throws. Where the environment sets NCCL_COMM_BLOCKING=0, NCCL executes the operation instead.
  [[nodiscard]] virtual std::optional<double> seconds(const std::function<void(Communicator&)>& f) = 0;

 protected:
  NcclEstimator() = default;
};
/// For the ranks of `communicator`. Collective and blocking, with no operation under way. nullptr where there are no
/// estimates: the communicator is not NCCL's, NCCL is older than 2.22, or the build has no NCCL. Throws NcclError.
[[nodiscard]] std::unique_ptr<NcclEstimator> make_nccl_estimator(Communicator& communicator);

/// Whether this build has NCCL.
[[nodiscard]] bool has_nccl();

/// LOCKSTEP_ALLOW_SHARED_GPU: "1" allows it; unset, "" and "0" do not. UsageError for anything else.
[[nodiscard]] bool shared_gpu_allowed();

/// Environment variables that let NCCL run several ranks on one GPU, one process each: slow, for tests. NCCL refuses
/// such ranks unless it takes each for a host of its own; they then talk through sockets. A program sets them with
/// set_shared_gpu_environment() (comm/launch/rank_device.hpp).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> shared_gpu_environment(int rank);

/// What each rank tells the others before NCCL starts; make_nccl_communicator() compares it.
struct NcclRank {
  std::string host{};
  std::string gpu{};              ///< UUID
  std::string host_id{};          ///< NCCL_HOSTID, for ranks that share a GPU
  int version = 0;                ///< of the NCCL library at run time: 22809 is 2.28.9
  bool allow_shared_gpu = false;  ///< NcclOptions
  std::string failure{};          ///< why this rank has no GPU or no NCCL; else empty
};
/// Throws the errors of make_nccl_communicator() that come before NCCL starts, the same on every rank. built: the
/// version of NCCL in the build.
void check_nccl_ranks(const std::vector<NcclRank>& ranks, int built);

}  // namespace lockstep::comm

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
  double timeout_s = 120;         ///< for set-up, split and end, each
  bool allow_shared_gpu = false;  ///< two ranks may have one GPU (set_shared_gpu_environment())
  int most_blocks = 0;            ///< of the GPU that one operation may take (NCCL's maxCTAs, 1 to 64); 0: NCCL decides
  std::string name = "lockstep";  ///< in NCCL's own messages
};

/// Ranks that exchange tensors on their GPUs through NCCL; the ranks are those of `control`, a communicator for host
/// tensors, which carries what set-up needs. device: this rank's GPU. Collective and blocking; afterwards control is
/// not used any more. One small all-reduce has run when it returns.
///
/// Operations are enqueued on CUDA streams of that device and wait for nothing on the device; the host waits only while
/// NCCL says that a call is in progress (connections are made at first use). A communicator's operations go to one
/// stream, or to streams that events order. Sums: all types but u8; those of bf16 and f16 are rounded at every
/// addition, and the order of additions is NCCL's. What is captured in a graph must have run once before, and graphs
/// must go before the communicator: NCCL neither ends nor aborts while one lives.
///
/// What is found before NCCL starts is found by all ranks together (CollectiveError): UsageError when two ranks have
/// one GPU, naming both, or may and are on several hosts, when versions of NCCL differ or NCCL is an older minor
/// version than the one that lockstep was built with; DeviceError when a rank has no GPU. So is a set-up that fails or
/// is not over in time on some rank: NcclError with that rank, the seconds and NCCL's own words. Later a failure is
/// this rank's: NcclError from the operation or from check(); the communicator is aborted, so that nothing on this GPU
/// waits any more, and every later call throws. The destructor ends NCCL in good order with the other ranks; while an
/// exception unwinds, or when that takes more than timeout_s, it aborts instead. An abort is waited for 2 s at most and
/// then goes on on a thread of its own. In a build without NCCL: UsageError, on every rank.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, Device device,
                                                                   const NcclOptions& options = {});

/// What NCCL itself expects an operation to take, from the model by which it chooses algorithms: the operation is
/// planned and not executed (ncclGroupSimulateEnd). NCCL does that only for communicators whose calls block, so that
/// this has one of its own; its calls have no timeout. Used and destroyed by all ranks together.
class NcclEstimator {
 public:
  virtual ~NcclEstimator() = default;
  NcclEstimator(const NcclEstimator&) = delete;
  NcclEstimator& operator=(const NcclEstimator&) = delete;

  /// Seconds of the one operation that `f` calls on the communicator it is given, on a stream of the device: an
  /// all_reduce, reduce_scatter, all_gather or broadcast; messages are not estimated. Nothing is read or written.
  /// Empty where NCCL estimates none: for one rank, where f is not called, and for nothing to exchange. NcclError, and
  /// what f throws. Where the environment sets NCCL_COMM_BLOCKING=0, NCCL executes the operation instead.
  [[nodiscard]] virtual std::optional<double> seconds(const std::function<void(Communicator&)>& f) = 0;

 protected:
  NcclEstimator() = default;
};
/// For the ranks of `communicator`. Collective and blocking, with no operation under way. nullptr where there are no
/// estimates: not a communicator of NCCL, NCCL older than 2.22, a build without NCCL. NcclError.
[[nodiscard]] std::unique_ptr<NcclEstimator> make_nccl_estimator(Communicator& communicator);

/// Whether this build has NCCL.
[[nodiscard]] bool has_nccl();

/// LOCKSTEP_ALLOW_SHARED_GPU: "1" allows it, unset, "" and "0" do not; UsageError for anything else.
[[nodiscard]] bool shared_gpu_allowed();

/// Environment variables with which NCCL runs several ranks on one GPU, one process each: for tests, slow. NCCL refuses
/// such ranks unless it takes each for a host of its own, which then talk through sockets. A program sets them with
/// set_shared_gpu_environment() (comm/launch/rank_device.hpp).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> shared_gpu_environment(int rank);

/// What make_nccl_communicator() compares before it starts NCCL.
struct NcclRank {
  std::string host{};
  std::string gpu{};              ///< UUID
  std::string host_id{};          ///< NCCL_HOSTID, for ranks that share a GPU
  int version = 0;                ///< of the NCCL that runs: 22809 is 2.28.9
  bool allow_shared_gpu = false;  ///< NcclOptions
  std::string failure{};          ///< why this rank has no GPU or no NCCL; empty when it has
};
/// Throws what make_nccl_communicator() says above, the same on every rank. built: NCCL's version of the build.
void check_nccl_ranks(const std::vector<NcclRank>& ranks, int built);

}  // namespace lockstep::comm

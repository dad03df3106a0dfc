#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_check.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace lockstep::comm {

/// The device on which one rank computes.
struct RankDevice {
  Device device;
  std::string note{};  ///< line for the user: which GPUs stay unused, or why auto took the CPU; may be empty
  /// Set on local rank 0 for a usable:N request: the claims that keep other programs off the node's GPUs. The object
  /// must live until all ranks of the node are done.
  std::shared_ptr<const UsableGpus> claims{};
  bool shared = false;  ///< true if ranks share GPUs, because the node has more ranks than GPUs (Sharing::allowed)
};

/// Says whether several ranks of a node may share a GPU. Only tests allow this, because ranks on one GPU take turns.
enum class Sharing : bool { forbidden, allowed };

/// Data that a rank sends to all other ranks: its node, and the GPUs that it sees.
struct RankView {
  int node = 0;
  std::vector<std::string> gpus{};  ///< UUIDs of the GPUs that the rank sees, in the order of their indices
};

/// Returns the device of rank `rank`. `ranks` has the views of all ranks, in rank order. `gpus` is list_gpus() of this
/// rank, with the same GPUs as ranks[rank].
///
/// Every rank gets its own GPU: local rank 0 of a node gets the first device of select_devices(), local rank 1 the
/// second, and so on. But if each rank of a node sees one GPU, and the GPUs differ, the launcher has assigned them, and
/// each rank gets the GPU that it sees. In this case the request may be auto, gpu, the number of ranks, or UUIDs in the
/// order of the local ranks. GPU indices are refused, because every rank sees its GPU as index 0.
///
/// With auto, GPUs may stay unused; RankDevice::note then names the unused GPUs. With Sharing::allowed, the ranks of a
/// node share its GPUs if there are more ranks than GPUs.
///
/// Throws UsageError in these cases:
///   - a request other than auto wants more GPUs than the node has ranks
///   - the node has more ranks than GPUs, and `sharing` is Sharing::forbidden
///   - the request is cpu:RANKS, and the node has another number of ranks
///   - only some ranks have GPUs
///   - the launcher has assigned one GPU to two ranks
///   - ranks of a node see different GPUs, and some rank of the node sees several GPUs
///   - `rank` or `gpus` does not match `ranks`
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                                        const std::vector<RankView>& ranks, Sharing sharing = Sharing::forbidden);

/// Checks a usable:N request before any GPU is tried; does nothing for other requests. Throws UsageError in three
/// cases: the node does not have as many ranks as the request wants GPUs, the node's ranks do not all see the same
/// GPUs, or the launcher has assigned a GPU to each rank. After the check, the caller replaces usable:N by the GPUs
/// that it finds (DeviceRequest::with_gpus()).
void check_usable(const DeviceRequest& request, int rank, const std::vector<RankView>& ranks);

/// Requires that all nodes compute on equal GPUs, because a batch is divided into equal parts. `gpus` has the kind of
/// each rank's GPU ("NVIDIA H200, 143 GB"), in rank order. Throws UsageError, which names both nodes, if the ranks of
/// two nodes have different kinds or numbers of GPUs.
void require_equal_nodes(const DeviceRequest& request, const std::vector<RankView>& ranks,
                         const std::vector<std::string>& gpus);

/// Returns the first variable with which a launcher or batch system has given this process GPUs: "SLURM_JOB_GPUS=0,1".
/// Empty if there is none. A value that is empty, -1 or NoDevFiles gives no GPUs.
[[nodiscard]] std::string promised_gpus(const Environment& environment);

/// Functions that find and check a node's GPUs. Tests replace these functions.
struct NodeGpus {
  std::function<std::vector<GpuInfo>()> list = list_gpus;
  std::function<UsableGpus(int count)> find_usable = [](int count) { return find_usable_gpus(count); };
  std::function<std::string()> why_none = why_no_gpus;
  std::function<std::string()> promised = [] { return promised_gpus(process_environment()); };
  std::function<void(Device)> check = [](Device device) { check_gpu(device); };
  std::function<void(Device)> make_current = lockstep::make_current;
  Sharing sharing = Sharing::forbidden;
};

/// Returns the device of this rank of the session. Collective. All nodes must have equal GPUs. check_gpu() tries each
/// rank's GPU and makes its context, so this function throws DeviceError if another process holds a GPU. For usable:N,
/// local rank 0 of each node finds and claims GPUs and tells the node's other ranks.
///
/// If the request is auto and there is no GPU, the result is the CPU, and RankDevice::note gives the reason. But if the
/// batch system gave GPUs to the job, throws UsageError, because the user expects to train on these GPUs.
///
/// A failure on one rank is printed once and ends all ranks. Throws UsageError on all ranks if their requests differ.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request, const NodeGpus& machine = {});

/// Returns the device like device_of_rank(), but also makes the rank's GPU the calling thread's current device; no
/// other GPU gets a context. Ranks may share a GPU if shared_gpu_allowed() is true (gpu_communicator.hpp);
/// machine.sharing is not used. For a rank that shares a GPU, calls set_shared_gpu_environment(), so no other thread
/// may read the environment meanwhile. Collective. Throws the errors of device_of_rank(), and UsageError if
/// LOCKSTEP_ALLOW_SHARED_GPU is neither 0 nor 1 on some rank.
[[nodiscard]] RankDevice place_rank(Session& session, const DeviceRequest& request, NodeGpus machine = {});

/// Sets the environment variables of shared_gpu_environment(rank) in this process, except variables that are already
/// set. place_rank() calls this. Call it before the first NCCL call, and before other threads read the environment.
void set_shared_gpu_environment(int rank);

}  // namespace lockstep::comm

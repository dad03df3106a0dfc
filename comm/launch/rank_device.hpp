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

/// The device of one rank.
struct RankDevice {
  Device device;
  std::string note{};  ///< one line for the user (GPUs left over; reason why auto chose the CPU), or empty
  /// With usable:N, on local rank 0: the claims that keep other programs off the node's GPUs. Keep them until the
  /// node's ranks are done.
  std::shared_ptr<const UsableGpus> claims{};
  bool shared = false;  ///< another rank uses the same GPU (Sharing::allowed)
};

/// Whether several ranks of a node may share a GPU. For tests only: the ranks take turns on the GPU.
enum class Sharing : bool { forbidden, allowed };

/// One rank's node and visible GPUs, which it sends to the others.
struct RankView {
  int node = 0;
  std::vector<std::string> gpus{};  ///< UUIDs of the GPUs visible to the rank, by index
};

/// Returns the device of `rank`. ranks: all ranks, in order; gpus: list_gpus() of this rank, the same GPUs as in
/// ranks[rank].
///
/// Every rank gets its own GPU: local rank 0 of a node gets the first of select_devices(), and so on. When each rank of
/// a node sees one GPU, and the GPUs differ, the launcher has assigned them: each rank gets the GPU that it sees. The
/// request may then be auto, gpu, the number of ranks, or UUIDs in the order of the local ranks; indices would all be
/// 0.
///
/// UsageError, with both numbers, for an explicit request of other than one GPU per rank, for more ranks than GPUs, and
/// for cpu:RANKS with another number of ranks. UsageError when only some ranks have GPUs, when two ranks were assigned
/// one GPU, when ranks of a node see different GPUs in another way, and when rank or gpus do not match `ranks`. With
/// auto, GPUs may be left over; the note says so. With Sharing::allowed, ranks in excess of the GPUs share them in
/// turn.
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                                        const std::vector<RankView>& ranks, Sharing sharing = Sharing::forbidden);

/// Checks a usable:N request before any GPU is tried; ignores other requests. The node must have as many ranks as GPUs
/// wanted, and its ranks must all see the same GPUs; a launcher that assigned GPUs has already chosen. UsageError
/// otherwise. Afterwards, DeviceRequest::with_gpus() places usable:N.
void check_usable(const DeviceRequest& request, int rank, const std::vector<RankView>& ranks);

/// Compares the nodes' GPUs. gpus: the kind of each rank's GPU ("NVIDIA H200, 143 GB"), all ranks in order. UsageError,
/// with both nodes, when the ranks of two nodes got different kinds or numbers of GPUs: equal parts of a batch need
/// equal nodes.
void require_equal_nodes(const DeviceRequest& request, const std::vector<RankView>& ranks,
                         const std::vector<std::string>& gpus);

/// Returns the GPUs that a launcher or batch system has given this process, by its variables: "SLURM_JOB_GPUS=0,1";
/// empty: none. An empty CUDA_VISIBLE_DEVICES, -1 and NoDevFiles hide GPUs.
[[nodiscard]] std::string promised_gpus(const Environment& environment);

/// The functions that find a node's GPUs; tests replace them.
struct NodeGpus {
  std::function<std::vector<GpuInfo>()> list = list_gpus;
  std::function<UsableGpus(int count)> find_usable = [](int count) { return find_usable_gpus(count); };
  std::function<std::string()> why_none = why_no_gpus;
  std::function<std::string()> promised = [] { return promised_gpus(process_environment()); };
  std::function<void(Device)> check = [](Device device) { check_gpu(device); };
  std::function<void(Device)> make_current = lockstep::make_current;
  Sharing sharing = Sharing::forbidden;
};

/// Returns the device of this rank of the session. Looks for GPUs only when the request is not for the host. Nodes must
/// have equal GPUs. check_gpu() tries the GPU and makes its context, so a GPU that another process holds ends all ranks
/// here, with DeviceError. With auto and no GPU, the note says why the CPU is used; but UsageError when the job was
/// given GPUs, because nobody asks for GPUs to train on the CPU. With usable:N, local rank 0 of each node finds and
/// claims the GPUs and tells the node's other ranks. Collective; a failure on one rank is printed once and ends all
/// ranks. UsageError on all ranks when their requests differ.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request, const NodeGpus& machine = {});

/// As device_of_rank(), for programs: the rank's GPU becomes the calling thread's current device, and no other GPU gets
/// a context. Ranks may share a GPU when shared_gpu_allowed() says so (gpu_communicator.hpp); a rank that shares one
/// sets the variables of set_shared_gpu_environment(), so no other thread may read the environment meanwhile.
/// machine.sharing is not used. Collective, with the errors of device_of_rank(), and UsageError when
/// LOCKSTEP_ALLOW_SHARED_GPU is neither 0 nor 1 on some rank.
[[nodiscard]] RankDevice place_rank(Session& session, const DeviceRequest& request, NodeGpus machine = {});

/// Sets the variables of shared_gpu_environment(rank) in this process, except those that are already set. Call it
/// before the first NCCL call and before other threads read the environment; place_rank() does so.
void set_shared_gpu_environment(int rank);

}  // namespace lockstep::comm

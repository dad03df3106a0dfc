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

/// Device of one rank.
struct RankDevice {
  Device device;
  std::string note{};  ///< one line for the user (GPUs that are not used; why auto chose the CPU); may be empty
  /// Set with usable:N, on local rank 0: the claims that keep other programs off the node's GPUs. Keep them until the
  /// node's ranks are done.
  std::shared_ptr<const UsableGpus> claims{};
  bool shared = false;  ///< true: the node has more ranks than GPUs, so ranks share GPUs (Sharing::allowed)
};

/// Says whether several ranks of a node may share a GPU. Only for tests, because the ranks take turns on the GPU.
enum class Sharing : bool { forbidden, allowed };

/// Node and visible GPUs of one rank, which the rank sends to the others.
struct RankView {
  int node = 0;
  std::vector<std::string> gpus{};  ///< UUIDs of the GPUs that the rank sees, by index
};

/// Returns the device of `rank`. `ranks` has all ranks, in order. `gpus` is list_gpus() of this rank and has the same
/// GPUs as ranks[rank].
///
/// Every rank gets its own GPU: local rank 0 of a node gets the first of select_devices(), and so on. If each rank of a
/// node sees one GPU, and the GPUs differ, the launcher has assigned them, and each rank gets the GPU that it sees.
/// Then the request may be auto, gpu, the number of ranks, or UUIDs in the order of the local ranks. Indices are
/// refused, because all would be 0.
///
/// UsageError, with both numbers, for an explicit request of other than one GPU for each rank, for more ranks than
/// GPUs, and for cpu:RANKS with another number of ranks. UsageError also if only some ranks have GPUs, if two ranks
/// were assigned one GPU, if ranks of a node see different GPUs in another way, and if `rank` or `gpus` does not match
/// `ranks`. With auto, some GPUs may stay unused; the note says so. With Sharing::allowed, if there are more ranks than
/// GPUs, the ranks share the GPUs in turn.
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                                        const std::vector<RankView>& ranks, Sharing sharing = Sharing::forbidden);

/// Checks a usable:N request before any GPU is tried; ignores other requests. The node must have as many ranks as GPUs
/// wanted, and its ranks must all see the same GPUs; a launcher that assigned GPUs has already chosen. Otherwise
/// UsageError. After this check, DeviceRequest::with_gpus() places usable:N.
void check_usable(const DeviceRequest& request, int rank, const std::vector<RankView>& ranks);

/// Compares the nodes' GPUs. `gpus` has the kind of each rank's GPU ("NVIDIA H200, 143 GB"), all ranks in order.
/// UsageError, with both nodes, if the ranks of two nodes got different kinds or numbers of GPUs: equal parts of a
/// batch need equal nodes.
void require_equal_nodes(const DeviceRequest& request, const std::vector<RankView>& ranks,
                         const std::vector<std::string>& gpus);

/// Returns the variables by which a launcher or batch system has given this process GPUs: "SLURM_JOB_GPUS=0,1". Empty
/// if there are none. An empty CUDA_VISIBLE_DEVICES, -1 and NoDevFiles hide GPUs.
[[nodiscard]] std::string promised_gpus(const Environment& environment);

/// Functions that find a node's GPUs; tests replace them.
struct NodeGpus {
  std::function<std::vector<GpuInfo>()> list = list_gpus;
  std::function<UsableGpus(int count)> find_usable = [](int count) { return find_usable_gpus(count); };
  std::function<std::string()> why_none = why_no_gpus;
  std::function<std::string()> promised = [] { return promised_gpus(process_environment()); };
  std::function<void(Device)> check = [](Device device) { check_gpu(device); };
  std::function<void(Device)> make_current = lockstep::make_current;
  Sharing sharing = Sharing::forbidden;
};

/// Returns the device of this rank of the session. Looks for GPUs only if the request is not for the host. Nodes must
/// have equal GPUs. check_gpu() tries the GPU and makes its context, so a GPU that another process holds ends all ranks
/// here, with DeviceError. With auto and no GPU, the note says why the CPU is used. But if the job was given GPUs, this
/// is a UsageError, because nobody asks for GPUs to train on the CPU. With usable:N, local rank 0 of each node finds
/// and claims the GPUs and tells the node's other ranks. Collective; a failure on one rank is printed once and ends all
/// ranks. UsageError on all ranks if their requests differ.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request, const NodeGpus& machine = {});

/// Returns the device like device_of_rank(), for programs: the rank's GPU also becomes the calling thread's current
/// device, and no other GPU gets a context. Ranks may share a GPU if shared_gpu_allowed() says so
/// (gpu_communicator.hpp). A rank that shares one sets the variables of set_shared_gpu_environment(), so no other
/// thread may read the environment meanwhile. machine.sharing is not used. Collective, with the errors of
/// device_of_rank(), and UsageError if LOCKSTEP_ALLOW_SHARED_GPU is neither 0 nor 1 on some rank.
[[nodiscard]] RankDevice place_rank(Session& session, const DeviceRequest& request, NodeGpus machine = {});

/// Sets the variables of shared_gpu_environment(rank) in this process, except those that are already set. Call it
/// before the first NCCL call and before other threads read the environment; place_rank() does so.
void set_shared_gpu_environment(int rank);

}  // namespace lockstep::comm

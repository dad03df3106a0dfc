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
  std::string note{};  ///< one line that a user should see: GPUs are left over, auto means the CPU here; or empty
  /// On local rank 0 with usable:N: keeps others away from the GPUs of the node. To be held until its ranks are done.
  std::shared_ptr<const UsableGpus> claims{};
  bool shared = false;  ///< another rank has the same GPU (Sharing::allowed)
};

/// May several ranks of a node have one GPU? For tests only: they take turns there.
enum class Sharing : bool { forbidden, allowed };

/// What a rank says of its place.
struct RankView {
  int node = 0;
  std::vector<std::string> gpus{};  ///< UUIDs of the GPUs that it sees, by index
};

/// Which device `rank` gets. ranks: all ranks, in order; gpus: list_gpus() of this rank, of which ranks[rank] tells.
///
/// Every rank gets a GPU of its own: local rank 0 of a node the first of select_devices(). When each rank of a node
/// sees one GPU, and not all the same, their launcher has handed them out: that one is its device, and a request may be
/// auto, gpu, the number of ranks, or UUIDs in the order of the local ranks; indices would all be 0.
///
/// UsageError with both numbers: an explicit request for other than one GPU a rank, more ranks than GPUs, cpu:RANKS
/// with another number of ranks, some ranks with GPUs and others without, two ranks that were handed the same GPU,
/// ranks of a node that see different GPUs in another way; rank or gpus that do not fit `ranks`. With auto, GPUs
/// without a rank are left over, and the note says so. With Sharing::allowed more ranks than GPUs take them in turn.
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                                        const std::vector<RankView>& ranks, Sharing sharing = Sharing::forbidden);

/// What must hold for usable:N before GPUs are tried: as many ranks on the node as GPUs wanted, and all ranks of a node
/// see the same GPUs; when a launcher has handed them out, it has chosen already. UsageError otherwise. usable:N itself
/// is then placed by its DeviceRequest::with_gpus(). Nothing to check for other requests.
void check_usable(const DeviceRequest& request, int rank, const std::vector<RankView>& ranks);

/// gpus: of each rank, what kind of GPU it got ("NVIDIA H200, 143 GB"); all ranks in order. UsageError naming both when
/// the ranks of two nodes got other kinds or another number of them. Equal nodes are what shares of a batch and the
/// sharing of links count on.
void require_equal_nodes(const DeviceRequest& request, const std::vector<RankView>& ranks,
                         const std::vector<std::string>& gpus);

/// Where a node's GPUs come from.
struct NodeGpus {
  std::function<std::vector<GpuInfo>()> list = list_gpus;
  std::function<UsableGpus(int count)> find_usable = [](int count) { return find_usable_gpus(count); };
  std::function<std::string()> why_none = why_no_gpus;
  std::function<void(Device)> check = [](Device device) { check_gpu(device); };
  Sharing sharing = Sharing::forbidden;
};

/// The device of this rank of the session; asks for GPUs only when the request is not for the host. Nodes must have
/// equal GPUs. A GPU is tried (check_gpu(), which makes its context), so that one that another process has ends all
/// ranks here, with DeviceError. With auto and no GPU the note says why it is the CPU. With usable:N local rank 0 of
/// each node finds and claims them and tells the node's ranks. Collective; what goes wrong on one rank is said once and
/// ends all. UsageError on all ranks when their requests differ.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request, const NodeGpus& machine = {});

/// For programs: where a rank computes, device_of_rank() with ranks that share a GPU where shared_gpu_allowed() says so
/// (gpu_communicator.hpp). A rank that shares one has the variables of set_shared_gpu_environment() afterwards, so
/// other threads must not read the environment meanwhile. Collective, with the errors of device_of_rank(); UsageError,
/// too, when LOCKSTEP_ALLOW_SHARED_GPU is neither 0 nor 1 on some rank. machine.sharing is not used.
[[nodiscard]] RankDevice place_rank(Session& session, const DeviceRequest& request, NodeGpus machine = {});

/// Sets the variables of shared_gpu_environment(rank) for this process, except those that are set already. Called
/// before the first NCCL call and before other threads read the environment; place_rank() does it.
void set_shared_gpu_environment(int rank);

}  // namespace lockstep::comm

#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/session.hpp>
#include <lockstep/runtime/device_selection.hpp>

namespace lockstep::comm {

/// The device of one rank.
struct RankDevice {
  Device device;
  std::string note{};  ///< what a user should know beside it, e.g. that GPUs are left over; or empty
};

/// Which device a rank of a node gets. `gpus`: what this rank sees (list_gpus()); `visible`: the UUIDs that each rank
/// of the node sees, in the order of the local ranks. Every rank gets a GPU of its own, local rank 0 the first of
/// select_devices(). When each rank sees one GPU, and no two the same (a launcher that hands out GPUs), that is its
/// device; a request is then held against the node's GPUs together.
///
/// UsageError with both numbers: an explicit request for other than one GPU a rank, more ranks than GPUs, cpu:RANKS
/// with another number of ranks; two ranks that were handed the same GPU; ranks that see different GPUs in another way.
/// With "auto", GPUs without a rank are left over, and the note says so.
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int local_rank,
                                        const std::vector<std::vector<std::string>>& visible);

/// The same for this rank of the session. Collective; what goes wrong on one rank is said once and ends all.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request);

}  // namespace lockstep::comm

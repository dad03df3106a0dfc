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
/// without a rank are left over, and the note says so.
[[nodiscard]] RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                                        const std::vector<RankView>& ranks);

/// The same for this rank of the session; asks for GPUs only when the request is not for the host. Collective; what
/// goes wrong on one rank is said once and ends all.
[[nodiscard]] RankDevice device_of_rank(Session& session, const DeviceRequest& request);

}  // namespace lockstep::comm

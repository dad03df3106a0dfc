#pragma once

#include <optional>
#include <string>

namespace lockstep::tools {

/// The physical limit of a path in one direction.
struct KnownLimit {
  std::string text{};      ///< text such as "PCIe 5.0 x16"; empty if the limit is not known
  double bytes_per_s = 0;  ///< limit in bytes per second, packet headers included
};

/// Returns the limit of a PCI Express link: rate * lanes * the share of bits that are data. The share is 8/10 in
/// generations 1 and 2, 128/130 in generations 3 to 5, and 242/256 in generation 6 (PCI Express Base Specification).
/// The result is empty for unknown values, generations that do not exist, and lanes other than 1 to 32.
[[nodiscard]] KnownLimit pcie_limit(std::optional<int> generation, std::optional<int> lanes);

/// Returns the limit of the NVLinks between two GPUs of compute capability `major`: 25 GB/s per link and direction up
/// to Hopper (generations 2 to 4), 50 GB/s from Blackwell on (NVIDIA's architecture white papers). The result is empty
/// without links, and for GPUs before Volta.
[[nodiscard]] KnownLimit nvlink_limit(int major, std::optional<int> links);

/// Returns the limit of a copy between two GPUs of compute capability `major`: their NVLinks (nvlink_limit) or, without
/// NVLinks, the slower of the PCIe links of the two GPUs, `mine` and `other`. Empty when the number of NVLinks is not
/// known.
[[nodiscard]] KnownLimit peer_limit(int major, std::optional<int> nvlinks, const KnownLimit& mine,
                                    const KnownLimit& other);

/// Returns the limit of busbw for an all-reduce between the GPUs of `ranks` ranks. For two ranks this is `peer`, the
/// limit of a copy from one GPU to the other, because each GPU sends everything that the other receives. The result is
/// empty for several nodes and for more than two ranks. The limit of more ranks depends on the topology and on the
/// place of the additions: if switches add, each GPU sends less than busbw says.
[[nodiscard]] KnownLimit all_reduce_limit(int ranks, int nodes, const KnownLimit& peer);

/// Returns the limit of a copy inside the memory of a GPU: half of (clock * 2 transfers per cycle * bus width), because
/// a copy reads and writes. The formula holds for HBM and GDDR, with the clock that drivers report. Empty when clock or
/// width is not known.
[[nodiscard]] KnownLimit device_memory_limit(std::optional<int> clock_mhz, std::optional<int> bus_bits);

}  // namespace lockstep::tools

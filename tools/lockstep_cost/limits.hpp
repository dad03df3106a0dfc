#pragma once

#include <optional>
#include <string>

namespace lockstep::tools {

/// What a path cannot pass, one way.
struct KnownLimit {
  std::string text{};      ///< "PCIe 5.0 x16"; empty: nothing is known
  double bytes_per_s = 0;  ///< of data, before the headers of packets
};

/// PCI Express: rate * lanes * the share of the bits that is data (8b/10b in generations 1 and 2, 128b/130b in 3 to 5,
/// 242 bytes of a flit of 256 in 6; PCI Express Base Specification). Nothing for what is no link: generations that do
/// not exist, lanes other than 1 to 32, or either not known.
[[nodiscard]] KnownLimit pcie_limit(std::optional<int> generation, std::optional<int> lanes);

/// NVLink between two GPUs of this compute capability: 25 GB/s for each link and direction up to Hopper (generations 2
/// to 4), 50 GB/s from Blackwell on (NVIDIA's architecture white papers). Nothing without links, or before Volta.
[[nodiscard]] KnownLimit nvlink_limit(int major, std::optional<int> links);

/// A copy from one GPU to another, of compute capability `major`: the NVLinks between them (nvlink_limit), or without
/// any the slower of the links by which both are on PCIe, `mine` and `other`. Nothing while it is not known which it
/// is.
[[nodiscard]] KnownLimit peer_limit(int major, std::optional<int> nvlinks, const KnownLimit& mine,
                                    const KnownLimit& other);

/// busbw of an all-reduce between the GPUs of this many ranks. Two: what a copy from one to the other cannot pass,
/// `peer`, since each sends all that the other gets. More: nothing, it depends on the topology and on where sums are
/// made (in switches each GPU sends less than busbw says). Nor between nodes.
[[nodiscard]] KnownLimit all_reduce_limit(int ranks, int nodes, const KnownLimit& peer);

/// A copy inside the memory of a GPU, which is read and written: half of 2 transfers a clock * width of the bus, which
/// holds for HBM and GDDR alike as drivers give the clock. Nothing where either is not known.
[[nodiscard]] KnownLimit device_memory_limit(std::optional<int> clock_mhz, std::optional<int> bus_bits);

}  // namespace lockstep::tools

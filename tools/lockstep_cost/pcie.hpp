#pragma once

#include <optional>
#include <string>

namespace lockstep_cost {

/// A PCI Express link.
struct PcieLink {
  double gt_per_s = 0;  ///< transfers per second and lane, in 1e9: 2.5, 5, 8, 16, 32, 64 for generation 1 to 6
  int lanes = 0;

  /// What a direction carries at most before packet headers: rate * lanes * the share that is data (8b/10b up to
  /// generation 2, 128b/130b from 3 to 5, 242 of 256 bytes of a flit in 6; PCI Express Base Specification).
  [[nodiscard]] double bytes_per_s() const;
  [[nodiscard]] int generation() const;
  [[nodiscard]] std::string text() const;  ///< "PCIe 5.0 x16"
};

/// From the words of Linux's sysfs files max_link_speed ("32.0 GT/s PCIe") and max_link_width ("16"). Empty for
/// "Unknown", 0 and 255 lanes, rates that no generation has, and anything else.
[[nodiscard]] std::optional<PcieLink> parse_pcie(const std::string& speed, const std::string& width);

/// The link of a device ("0000:3b:00.0"); empty where the system does not say.
[[nodiscard]] std::optional<PcieLink> pcie_link(const std::string& pci, const std::string& sysfs = "/sys");

}  // namespace lockstep_cost

#include "tools/lockstep_cost/limits.hpp"

#include <array>
#include <cstddef>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::tools {

KnownLimit pcie_limit(std::optional<int> generation, std::optional<int> lanes) {
  constexpr std::array<double, 6> kTransfers{2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9};  // bits per second and lane
  const int g = generation.value_or(0);
  const int n = lanes.value_or(0);
  if (g < 1 || g > static_cast<int>(kTransfers.size()) || n < 1 || n > 32) {
    return {};
  }
  const double data = g <= 2 ? 8.0 / 10 : (g <= 5 ? 128.0 / 130 : 242.0 / 256);
  return {concat("PCIe ", g, ".0 x", n), kTransfers[static_cast<std::size_t>(g) - 1] * data * n / 8};
}

KnownLimit nvlink_limit(int major, std::optional<int> links) {
  constexpr int kVolta = 7;
  constexpr int kBlackwell = 10;
  const int n = links.value_or(0);
  if (n < 1 || major < kVolta) {
    return {};
  }
  return {concat(n, n == 1 ? " NVLink" : " NVLinks"), (major >= kBlackwell ? 50e9 : 25e9) * n};
}

KnownLimit peer_limit(int major, std::optional<int> nvlinks, const KnownLimit& mine, const KnownLimit& other) {
  if (nvlinks != 0) {
    return nvlink_limit(major, nvlinks);
  }
  if (mine.bytes_per_s <= 0 || other.bytes_per_s <= 0) {
    return {};
  }
  return mine.bytes_per_s <= other.bytes_per_s ? mine : other;
}

KnownLimit all_reduce_limit(int ranks, int nodes, const KnownLimit& peer) {
  return ranks == 2 && nodes == 1 ? peer : KnownLimit{};
}

KnownLimit device_memory_limit(std::optional<int> clock_mhz, std::optional<int> bus_bits) {
  const int clock = clock_mhz.value_or(0);
  const int bits = bus_bits.value_or(0);
  if (clock < 1 || bits < 1) {
    return {};
  }
  return {concat("memory of ", bits, " bits at ", clock, " MHz, read and written"), 1e6 * clock * bits / 8};
}

}  // namespace lockstep::tools

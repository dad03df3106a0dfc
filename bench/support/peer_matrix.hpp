#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::bench {

/// A copy from the memory of one GPU to that of another, one way.
struct PeerRate {
  Device from;
  Device to;
  std::int64_t bytes = 0;
  double bytes_per_second = 0;
};

/// What each GPU gets across to each other: the largest size that was measured between any two of them, as a table for
/// people (rows send, columns receive, GB/s; n/a for what was not measured at that size). The last of several rates of
/// a pair counts. Empty when none of the pairs was measured. Pure.
[[nodiscard]] std::string peer_matrix(std::span<const Device> gpus, std::span<const PeerRate> rates);

}  // namespace lockstep::bench

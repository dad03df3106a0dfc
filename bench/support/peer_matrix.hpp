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

/// The rates between every two GPUs as a table for people: rows send, columns receive, GB/s. It shows the largest size
/// that was measured between any two; n/a where a pair was not measured at that size. Of several rates of a pair the
/// last one counts. Empty when no pair was measured. Pure.
[[nodiscard]] std::string peer_matrix(std::span<const Device> gpus, std::span<const PeerRate> rates);

}  // namespace lockstep::bench

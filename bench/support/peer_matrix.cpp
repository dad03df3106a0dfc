#include "bench/support/peer_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::bench {
namespace {

constexpr std::size_t kCell = 9;

std::string right(const std::string& text) {
  return std::string(text.size() < kCell ? kCell - text.size() : 1, ' ') + text;
}

}  // namespace

std::string peer_matrix(std::span<const Device> gpus, std::span<const PeerRate> rates) {
  std::int64_t bytes = 0;
  for (const PeerRate& rate : rates) {
    bytes = std::max(bytes, rate.bytes);
  }
  if (bytes == 0) {
    return {};
  }
  std::string matrix = concat("GB/s one way, ", bytes, " bytes, from each GPU (row) to each other\n", right(""));
  for (const Device& to : gpus) {
    matrix += right(to_string(to));
  }
  for (const Device& from : gpus) {
    matrix += concat("\n", right(to_string(from)));
    for (const Device& to : gpus) {
      if (from == to) {
        matrix += right("-");
        continue;
      }
      double found = std::numeric_limits<double>::quiet_NaN();
      for (const PeerRate& rate : rates) {
        if (rate.from == from && rate.to == to && rate.bytes == bytes) {
          found = rate.bytes_per_second;
        }
      }
      matrix += right(std::isfinite(found) ? digits(found * 1e-9, 2) : "n/a");
    }
  }
  return matrix + "\n";
}

}  // namespace lockstep::bench

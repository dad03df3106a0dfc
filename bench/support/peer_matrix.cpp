#include "bench/support/peer_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::bench {
namespace {

constexpr std::size_t kCell = 9;

std::string right(const std::string& text) {
  return std::string(text.size() < kCell ? kCell - text.size() : 1, ' ') + text;
}

}  // namespace

std::optional<Conclusion> peer_matrix(std::span<const Device> gpus, std::span<const PeerRate> rates) {
  std::int64_t bytes = 0;
  for (const PeerRate& rate : rates) {
    bytes = std::max(bytes, rate.bytes);
  }
  if (bytes == 0) {
    return std::nullopt;
  }
  Conclusion matrix{
      "peers", concat("GB/s one way, ", bytes, " bytes, from each GPU (row) to each other\n", right("")), {}};
  for (const Device& to : gpus) {
    matrix.text += right(to_string(to));
  }
  for (const Device& from : gpus) {
    matrix.text += concat("\n", right(to_string(from)));
    for (const Device& to : gpus) {
      if (from == to) {
        matrix.text += right("-");
        continue;
      }
      double found = std::numeric_limits<double>::quiet_NaN();
      for (const PeerRate& rate : rates) {
        if (rate.from == from && rate.to == to && rate.bytes == bytes) {
          found = rate.bytes_per_second;
        }
      }
      matrix.text += right(std::isfinite(found) ? digits(found * 1e-9, 2) : "n/a");
      matrix.counters.push_back({concat(from.index, "_to_", to.index), found, /*bytes_per_second=*/true});
    }
  }
  return matrix;
}

}  // namespace lockstep::bench

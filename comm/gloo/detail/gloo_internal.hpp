#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm::detail {

/// How a tensor travels. The same on all ranks.
struct GlooPieces {
  std::int64_t block_bytes = 256 << 10;   ///< a sum is computed, and a broadcast handed on, by blocks of this size
  std::int64_t segment_bytes = 64 << 20;  ///< operations beyond this size run segment after segment
};

/// make_gloo_communicator() with other sizes, so that tests can split small tensors. UsageError unless both are at
/// least 8 bytes.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous,
                                                                   const GlooPieces& pieces);

}  // namespace lockstep::comm::detail

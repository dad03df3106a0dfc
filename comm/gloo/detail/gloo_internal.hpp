#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm::detail {

/// Sizes of the pieces in which a tensor is sent. Equal on all ranks.
struct GlooPieces {
  std::int64_t block_bytes = 256 << 10;   ///< a sum is computed, and a broadcast forwarded, in blocks of this size
  std::int64_t segment_bytes = 64 << 20;  ///< a larger operation runs segment after segment
};

/// make_gloo_communicator() with other sizes, so that tests can split small tensors. UsageError unless both sizes are
/// at least 8 bytes.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous,
                                                                   const GlooPieces& pieces);

}  // namespace lockstep::comm::detail

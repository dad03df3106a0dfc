#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm::detail {

/// Sizes of the pieces in which a tensor is sent. Both sizes must be equal on all ranks.
struct GlooPieces {
  std::int64_t block_bytes = 256 << 10;   ///< size of a block in sums and broadcasts; smaller in sums of over 16 ranks
  std::int64_t segment_bytes = 64 << 20;  ///< size of a segment; larger operations run segment by segment
};

/// Makes a communicator as comm::make_gloo_communicator() does, but with the sizes in `pieces`, so that tests can split
/// small tensors. Throws UsageError unless both sizes are at least 8 bytes.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous,
                                                                   const GlooPieces& pieces);

}  // namespace lockstep::comm::detail

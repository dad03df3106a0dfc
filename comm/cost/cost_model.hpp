#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm {

/// One piece of a cost model: moving b bytes takes alpha_s + beta_s * b seconds for b >= first_bytes, up to the
/// beginning of the next piece. alpha_s is a latency (>= 0) only in the first piece; in later pieces it is the
/// intercept of the line and may be negative.
struct CostPiece {
  double first_bytes = 0;
  double alpha_s = 0;
  double beta_s = 0;  ///< seconds per byte; 1 / beta_s is the marginal bandwidth

  friend bool operator==(const CostPiece&, const CostPiece&) = default;
};

/// The cost of one operation as a function of its bytes: the alpha-beta model (Hockney, "The communication challenge
/// for MPP", Parallel Computing 20, 1994) in pieces, because libraries change protocol and algorithm with the size and
/// large copies no longer fit in caches. No pieces: nothing is known.
struct CostModel {
  std::vector<CostPiece> pieces;  ///< ascending; the first one begins at 0

  [[nodiscard]] bool empty() const { return pieces.empty(); }
  /// Seconds for `bytes`; 0 bytes cost the latency. The last piece also holds beyond the largest measured size.
  [[nodiscard]] double predict(double bytes) const;
  /// Latency of the first piece: the cost of the smallest operation.
  [[nodiscard]] double latency_s() const { return pieces.front().alpha_s; }
  /// Bytes per second of the last piece, for large operations; infinite when its time does not grow.
  [[nodiscard]] double bandwidth() const { return 1 / pieces.back().beta_s; }
  /// Formats the pieces to compare the models of ranks: "0:2e-06+1e-10 65536:...".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// Throws DataError, naming `source` and the piece, unless the pieces begin at 0 and ascend, every number is finite,
/// the latency and the last beta_s are at least 0, and the time is above 0 at both ends of every piece (at least 0 at 0
/// bytes).
void check(const CostModel& model, const std::string& source);

}  // namespace lockstep::comm

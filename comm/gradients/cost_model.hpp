#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm {

/// One piece of a cost model: moving b bytes takes alpha_s + beta_s * b seconds for b >= first_bytes, up to where the
/// next piece begins. Only in the first piece is alpha_s a latency (>= 0); further on it is where the line meets the
/// axis, and may be negative.
struct CostPiece {
  double first_bytes = 0;
  double alpha_s = 0;
  double beta_s = 0;  ///< seconds a byte; 1 / beta_s is the bandwidth at the margin

  friend bool operator==(const CostPiece&, const CostPiece&) = default;
};

/// What one operation costs as a function of its bytes: the alpha-beta model (Hockney, "The communication challenge for
/// MPP", Parallel Computing 20, 1994) in pieces, because libraries change their protocol and algorithm with the size
/// and copies fall out of caches. No pieces: nothing is known.
struct CostModel {
  std::vector<CostPiece> pieces;  ///< ascending; the first one begins at 0

  [[nodiscard]] bool empty() const { return pieces.empty(); }
  /// Seconds for `bytes`; 0 bytes cost the latency. Beyond the largest measured size the last piece goes on.
  [[nodiscard]] double predict(double bytes) const;
  /// Of the first piece: the cost of the smallest operation.
  [[nodiscard]] double latency_s() const { return pieces.front().alpha_s; }
  /// Bytes a second of the last piece, for large operations; infinite when its time does not grow.
  [[nodiscard]] double bandwidth() const { return 1 / pieces.back().beta_s; }
  /// "0:2e-06+1e-10 65536:...": for comparing the models of ranks.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// Throws DataError naming `source` and the piece unless the pieces begin at 0 and ascend, every number is finite, the
/// latency and the last beta_s are at least 0, and the time is above 0 at both ends of every piece (at 0 bytes: 0 or
/// more).
void check(const CostModel& model, const std::string& source);

}  // namespace lockstep::comm

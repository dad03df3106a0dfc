#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm {

/// One piece of a cost model: an operation on b bytes takes alpha_s + beta_s * b seconds. The piece holds for b >=
/// first_bytes, up to the beginning of the next piece. In the first piece, alpha_s is a latency (>= 0). In all other
/// pieces, alpha_s is only the intercept of the line and may be negative.
struct CostPiece {
  double first_bytes = 0;
  double alpha_s = 0;
  double beta_s = 0;  ///< seconds for each byte; 1 / beta_s is the marginal bandwidth

  friend bool operator==(const CostPiece&, const CostPiece&) = default;
};

/// Time of one operation as a function of its bytes: the alpha-beta model (Hockney, "The communication challenge for
/// MPP", Parallel Computing 20, 1994), with one line for each piece, a range of sizes. Pieces are needed because
/// libraries change protocol and algorithm with the size, and large copies do not fit in caches. A model without pieces
/// means that the time is unknown.
struct CostModel {
  std::vector<CostPiece> pieces;  ///< pieces in the order of first_bytes; the first one begins at 0

  [[nodiscard]] bool empty() const { return pieces.empty(); }
  /// Returns the predicted seconds of an operation on `bytes` bytes; for 0 bytes, the latency. The last piece also
  /// serves for sizes above the largest measured size.
  [[nodiscard]] double predict(double bytes) const;
  /// Returns the time of the smallest operation, alpha_s of the first piece.
  [[nodiscard]] double latency_s() const { return pieces.front().alpha_s; }
  /// Returns the bytes per second of large operations, 1 / beta_s of the last piece; infinite if beta_s is 0.
  [[nodiscard]] double bandwidth() const { return 1 / pieces.back().beta_s; }
  /// Formats each piece as first_bytes:alpha_s+beta_s ("0:2e-06+1e-10 65536:..."). Ranks compare models by this text.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// Throws DataError, with `source` and the piece, unless `model` has pieces that fulfil all of these conditions. The
/// pieces begin at 0 and ascend. Every number is finite. The first alpha_s and the last beta_s are at least 0. The time
/// is above 0 at both ends of every piece (at 0 bytes, at least 0).
void check(const CostModel& model, const std::string& source);

}  // namespace lockstep::comm

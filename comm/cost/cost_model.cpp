#include <lockstep/comm/cost/cost_model.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <locale>
#include <sstream>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace {

constexpr double kMostSeconds = 1e6;  // largest alpha_s and beta_s, so that predicted times and their sums stay finite

}  // namespace

double CostModel::predict(double bytes) const {
  std::size_t piece = 0;
  while (piece + 1 < pieces.size() && pieces[piece + 1].first_bytes <= bytes) {
    ++piece;
  }
  return pieces[piece].alpha_s + pieces[piece].beta_s * bytes;
}

std::string CostModel::text() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(std::numeric_limits<double>::max_digits10);
  for (const CostPiece& piece : pieces) {
    out << (out.tellp() > 0 ? " " : "") << piece.first_bytes << ':' << piece.alpha_s << '+' << piece.beta_s;
  }
  return out.str();
}

void check(const CostModel& model, const std::string& source) {
  require<DataError>(!model.empty(), source, ": the cost model has no pieces, expected at least one");
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const CostPiece& piece = model.pieces[i];
    const auto expect = [&](bool right, const char* name, double value, const char* what) {
      require<DataError>(right, source, ": ", name, " of piece ", i, " is ", value, ", expected ", what);
    };
    expect(i > 0 || piece.first_bytes == 0, "first_bytes", piece.first_bytes, "0");
    expect(i == 0 || piece.first_bytes > model.pieces[i - 1].first_bytes, "first_bytes", piece.first_bytes,
           "more than that of the piece before it");
    expect(std::isfinite(piece.first_bytes), "first_bytes", piece.first_bytes, "a finite number");
    const bool last = i + 1 == model.pieces.size();
    expect(std::abs(piece.beta_s) <= kMostSeconds && (!last || piece.beta_s >= 0), "beta_s", piece.beta_s,
           "seconds a byte, at most a million, in the last piece at least 0");
    expect(std::abs(piece.alpha_s) <= kMostSeconds && (i > 0 || piece.alpha_s >= 0), "alpha_s", piece.alpha_s,
           "seconds, at most a million, in the first piece at least 0");
    const double begin = piece.alpha_s + piece.beta_s * piece.first_bytes;
    expect(i == 0 || begin > 0, "the time at the beginning", begin, "more than 0");
    const double end = last ? begin : piece.alpha_s + piece.beta_s * model.pieces[i + 1].first_bytes;
    expect(last || end > 0, "the time at the end", end, "more than 0");
  }
}

}  // namespace lockstep::comm

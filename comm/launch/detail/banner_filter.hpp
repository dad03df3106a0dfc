#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::comm::detail {

/// Filters the standard error of Open MPI's mpirun. Keeps back mpirun's message that a rank ended with an exit code, so
/// that the last line is the rank's own error line, which gives the reason. Passes all other text at once.
///
/// A banner is the text between two lines of dashes. Keeps back the banners that report an exit code or MPI_Abort, and
/// the lines about help messages that follow such a banner. Passes other banners (about a signal, for example).
class BannerFilter {
 public:
  explicit BannerFilter(std::function<void(std::string_view text)> pass) : pass_(std::move(pass)) {}
  void write(std::string_view text);
  /// Ends the input. Passes unfinished text and, if `show` is true, the text that was kept back.
  void finish(bool show);

 private:
  void line(const std::string& text);
  std::function<void(std::string_view)> pass_;
  std::string cut_;     ///< beginning of a line whose end has not arrived
  std::string banner_;  ///< lines of a banner whose end has not arrived; empty outside of a banner
  std::string kept_;
};

}  // namespace lockstep::comm::detail

#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::comm::detail {

/// Keeps back the message of Open MPI's mpirun about a rank that ended with an exit code of lockstep's. So the line
/// with the reason is the last one. Passes all other text at once.
///
/// Keeps back banners between two lines of dashes that report an exit code or MPI_Abort, and the lines about help
/// messages that follow such a banner. Passes other banners (a signal, an option that mpirun does not know).
class BannerFilter {
 public:
  explicit BannerFilter(std::function<void(std::string_view text)> pass) : pass_(std::move(pass)) {}
  void write(std::string_view text);
  /// Ends the text. If `show` is true, passes the text that was kept back.
  void finish(bool show);

 private:
  void line(const std::string& text);
  std::function<void(std::string_view)> pass_;
  std::string cut_;     ///< line whose end has not arrived
  std::string banner_;  ///< lines so far of an open banner; empty if no banner is open
  std::string kept_;
};

}  // namespace lockstep::comm::detail

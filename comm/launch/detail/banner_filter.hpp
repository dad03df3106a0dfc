#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::comm::detail {

/// Keeps back the message of Open MPI's mpirun about a rank that ended with an exit code of lockstep's, so that the
/// line with the reason is the last one. Passes all other text at once.
///
/// Kept back are banners between two lines of dashes that report an exit code or MPI_Abort, and the lines about help
/// messages that follow them. Other banners (a signal, an option that mpirun does not know) pass.
class BannerFilter {
 public:
  explicit BannerFilter(std::function<void(std::string_view text)> pass) : pass_(std::move(pass)) {}
  void write(std::string_view text);
  /// Ends the text: passes on what was kept back if `show`.
  void finish(bool show);

 private:
  void line(const std::string& text);
  std::function<void(std::string_view)> pass_;
  std::string cut_;     ///< a line whose end has not arrived
  std::string banner_;  ///< lines so far of an open banner; empty: no banner is open
  std::string kept_;
};

}  // namespace lockstep::comm::detail

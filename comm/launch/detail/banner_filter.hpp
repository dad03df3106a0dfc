#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::comm::detail {

/// Keeps back what Open MPI's mpirun says of a rank that ended with an exit code of lockstep's, so that the line that
/// says why is the last one. Everything else passes as it comes.
///
/// Kept back are banners between two lines of dashes that tell of an exit code or of MPI_Abort, and the lines about
/// help messages that follow them. Other banners (a signal, an option that mpirun does not know) pass.
class BannerFilter {
 public:
  explicit BannerFilter(std::function<void(std::string_view text)> pass) : pass_(std::move(pass)) {}
  void write(std::string_view text);
  /// The end of the text: what is kept back is passed on when `show`.
  void finish(bool show);

 private:
  void line(const std::string& text);
  std::function<void(std::string_view)> pass_;
  std::string cut_;     ///< a line whose end has not come
  std::string banner_;  ///< the lines of a banner so far; empty: none is open
  std::string kept_;
};

}  // namespace lockstep::comm::detail

#include <lockstep/comm/launch/detail/banner_filter.hpp>

#include <algorithm>
#include <array>

namespace lockstep::comm::detail {

namespace {

constexpr std::size_t kDashes = 60;
constexpr std::size_t kLongestBanner = 8192;
constexpr std::array<std::string_view, 3> kBanners{"MPI_ABORT was invoked", "Primary job  terminated normally",
                                                   "processes exited with non-zero status"};
// mpirun may print single lines about a banner (a text between two lines of dashes). Each such line contains one of
// these texts. The last text belongs to mpirun's error that it cannot show the banner.
constexpr std::array<std::string_view, 4> kLines{
    "has sent help message help-mpi-api.txt / mpi-abort", "have sent help message help-mpi-api.txt / mpi-abort",
    "\"orte_base_help_aggregate\" to 0 to see all help", "util/show_help.c at line"};

bool is_dashes(std::string_view line) {
  return line.size() >= kDashes && line.find_first_not_of('-') == std::string_view::npos;
}

template <std::size_t N>
bool has_one(const std::string& text, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

}  // namespace

void BannerFilter::write(std::string_view text) {
  for (const char c : text) {
    cut_ += c;
    if (c == '\n') {
      line(cut_);
      cut_.clear();
    }
  }
  // Passes an unfinished line at once, because the line may be a rank's prompt, for which a user waits. Keeps only a
  // line that may belong to a banner.
  if (!cut_.empty() && banner_.empty() && cut_.front() != '-' && cut_.front() != '[') {
    pass_(cut_);
    cut_.clear();
  }
}

void BannerFilter::line(const std::string& text) {
  const bool dashes = is_dashes(std::string_view(text).substr(0, text.find_last_not_of("\r\n") + 1));
  if (!banner_.empty()) {
    banner_ += text;
    if (dashes || banner_.size() > kLongestBanner) {
      if (has_one(banner_, kBanners)) {
        kept_ += banner_;
      } else {
        pass_(banner_);
      }
      banner_.clear();
    }
  } else if (dashes) {
    banner_ = text;
  } else if (has_one(text, kLines)) {
    kept_ += text;
  } else {
    pass_(text);
  }
}

void BannerFilter::finish(bool show) {
  if (show) {
    pass_(kept_);
  }
  pass_(banner_ + cut_);
  kept_.clear();
  banner_.clear();
  cut_.clear();
}

}  // namespace lockstep::comm::detail

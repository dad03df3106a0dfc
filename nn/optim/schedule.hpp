#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nn {

/// The learning rate as a function of the step alone, so that a resumed run continues exactly.
struct Schedule {
  enum class Kind : unsigned char { constant, step, cosine } kind = Kind::constant;
  double base = 0.1;                     ///< learning rate after warm-up
  std::int64_t warmup_steps = 0;         ///< linear from base / warmup_steps up to base (Goyal et al. 2017)
  std::int64_t total_steps = 1;          ///< cosine reaches 0 after the last step (Loshchilov and Hutter 2017)
  std::vector<std::int64_t> milestones;  ///< step: multiplied by gamma at each of these steps
  double gamma = 0.1;

  /// Learning rate of step `step`, counted from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

[[nodiscard]] std::string_view name_of(Schedule::Kind kind);           ///< "constant", "step", "cosine"
[[nodiscard]] Schedule::Kind parse_schedule(const std::string& text);  ///< UsageError listing the names

}  // namespace lockstep::nn

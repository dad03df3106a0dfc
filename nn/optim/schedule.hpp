#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// The learning rate as a function of the step alone. A resumed run therefore continues with exactly the same rates.
struct Schedule {
  enum class Kind : unsigned char { constant, step, cosine, polynomial } kind = Kind::constant;
  double base = 0.1;                       ///< learning rate after warm-up
  std::int64_t warmup_steps = 0;           ///< number of warm-up steps at the start of the run; see WarmUp
  std::int64_t total_steps = 1;            ///< number of steps; cosine and polynomial would reach `end` at this step
  std::vector<std::int64_t> milestones{};  ///< for the kind `step`: steps at which the rate is multiplied by gamma
  double gamma = 0.1;
  /// For the kind `cosine`, the rate is end + (base - end) (1 + cos(pi d)) / 2 (Loshchilov and Hutter 2017). d is the
  /// fraction of the steps after warm-up that is done.
  double end = 0;
  /// For `polynomial`: end + (base - end) (1 - d)^power, with d as for cosine (You et al. 2017, LARS).
  double power = 2;
  /// Formula of the learning rate at warm-up step s, counted from 0. In the formulas, f is warmup_factor.
  enum class WarmUp : unsigned char {
    linear,    ///< from f * base at step 0 linearly to base; without f: base (s + 1) / warmup_steps (Goyal et al. 2017)
    constant,  ///< base f
    exponential  ///< base f^(1 - s / warmup_steps)
  } warmup = WarmUp::linear;
  std::optional<double> warmup_factor{};  ///< factor of `base` at step 0; must be above 0 unless `warmup` is linear

  /// Returns the learning rate of step `step`, counted from 0.
  [[nodiscard]] double at(std::int64_t step) const;

 private:
  [[nodiscard]] double warmup_rate(std::int64_t step) const;
};

[[nodiscard]] std::string_view name_of(Schedule::Kind kind);           ///< "constant", "step", "cosine", "polynomial"
[[nodiscard]] Schedule::Kind parse_schedule(const std::string& text);  ///< throws UsageError that lists all names
[[nodiscard]] std::string_view name_of(Schedule::WarmUp form);         ///< "linear", "constant", "exponential"
[[nodiscard]] Schedule::WarmUp parse_warmup(const std::string& text);  ///< throws UsageError that lists all names
/// Throws UsageError for fields of `schedule` that are out of range.
void require_schedule(const Schedule& schedule);
/// Adds options for a schedule's kinds and factors to the schema. The owner of the schedule sets the numbers of steps,
/// which depend on the length of the run.
void describe(Schema& schema, Schedule& schedule);

}  // namespace lockstep::nn

#include <lockstep/nn/optim/schedule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

// Names in the order of Schedule::Kind.
constexpr std::array<std::string_view, 4> kKinds{"constant", "step", "cosine", "polynomial"};
// Names in the order of Schedule::WarmUp.
constexpr std::array<std::string_view, 3> kForms{"linear", "constant", "exponential"};

}  // namespace

double Schedule::warmup_rate(std::int64_t step) const {
  const double done = static_cast<double>(step) / static_cast<double>(warmup_steps);
  const double factor = warmup_factor.value_or(1);
  switch (warmup) {
    case WarmUp::linear:
      break;
    case WarmUp::constant:
      return base * factor;
    case WarmUp::exponential:
      return base * std::pow(factor, 1 - done);
  }
  return warmup_factor ? base * (factor + (1 - factor) * done)
                       : base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return warmup_rate(step);
  }
  const double span = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
  const double done = std::min(static_cast<double>(step - warmup_steps) / span, 1.0);
  switch (kind) {
    case Kind::constant:
      break;
    case Kind::step: {
      const auto passed =
          std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t m) { return step >= m; });
      return base * std::pow(gamma, static_cast<double>(passed));
    }
    case Kind::cosine:
      return end + 0.5 * (base - end) * (1 + std::cos(std::numbers::pi * done));
    case Kind::polynomial:
      return end + (base - end) * std::pow(1 - done, power);
  }
  return base;
}

std::string_view name_of(Schedule::Kind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Schedule::WarmUp form) {
  return kForms[static_cast<std::size_t>(form)];
}

Schedule::Kind parse_schedule(const std::string& text) {
  const auto* found = std::find(kKinds.begin(), kKinds.end(), text);
  require<UsageError>(found != kKinds.end(), "unknown schedule '", text,
                      "', expected constant, step, cosine or polynomial");
  return static_cast<Schedule::Kind>(found - kKinds.begin());
}

Schedule::WarmUp parse_warmup(const std::string& text) {
  const auto* found = std::find(kForms.begin(), kForms.end(), text);
  require<UsageError>(found != kForms.end(), "unknown warm-up '", text, "', expected linear, constant or exponential");
  return static_cast<Schedule::WarmUp>(found - kForms.begin());
}

void require_schedule(const Schedule& schedule) {
  require<UsageError>(std::isfinite(schedule.gamma) && schedule.gamma > 0, "schedule: gamma is ", schedule.gamma,
                      ", expected above 0");
  require<UsageError>(std::isfinite(schedule.power) && schedule.power > 0, "schedule: power is ", schedule.power,
                      ", expected above 0");
  require<UsageError>(std::isfinite(schedule.end) && schedule.end >= 0, "schedule: the rate at the end is ",
                      schedule.end, ", expected at least 0");
  const bool linear = schedule.warmup == Schedule::WarmUp::linear;
  const double factor = schedule.warmup_factor.value_or(1);
  require<UsageError>(factor <= 1 && (linear ? factor >= 0 : factor > 0), "schedule: the factor of the warm-up is ",
                      factor, ", expected ", linear ? "0" : "above 0", " to 1");
  require<UsageError>(linear || schedule.warmup_factor, "schedule: a ", name_of(schedule.warmup),
                      " warm-up has no warmup_factor, expected one above 0");
}

void describe(Schema& schema, Schedule& schedule) {
  schema.group("Training");
  schema
      .named(
          "schedule", schedule.kind, [](Schedule::Kind kind) { return name_of(kind); }, parse_schedule,
          "rate schedule: constant, step, cosine or polynomial")
      .is_common();
  schema.add("gamma", schedule.gamma, "with --schedule step: learning rate's factor at a milestone").above(0);
  schema
      .add("power", schedule.power,
           "with --schedule polynomial: exponent; the learning rate falls as the remaining fraction of the run to this "
           "power")
      .above(0);
  schema.add("lr_end", schedule.end, "with --schedule cosine, polynomial: learning rate at the run's end").at_least(0);
  schema.named(
      "warmup", schedule.warmup, [](Schedule::WarmUp form) { return name_of(form); }, parse_warmup,
      "course of the learning rate in the warm-up: linear, constant or exponential");
  schema.add("warmup_factor", schedule.warmup_factor,
             "learning rate at the start of the warm-up, as a fraction of the rate after the warm-up; required for "
             "constant and exponential; a linear warm-up without this option starts at 1 / its steps");
}

}  // namespace lockstep::nn

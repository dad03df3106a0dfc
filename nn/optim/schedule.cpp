#include <lockstep/nn/optim/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  switch (kind) {
    case Kind::constant:
      break;
    case Kind::step: {
      const auto passed =
          std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t m) { return step >= m; });
      return base * std::pow(gamma, static_cast<double>(passed));
    }
    case Kind::cosine: {
      const double span = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
      const double done = std::min(static_cast<double>(step - warmup_steps) / span, 1.0);
      return 0.5 * base * (1 + std::cos(std::numbers::pi * done));
    }
  }
  return base;
}

std::string_view name_of(Schedule::Kind kind) {
  switch (kind) {
    case Schedule::Kind::constant:
      return "constant";
    case Schedule::Kind::step:
      return "step";
    case Schedule::Kind::cosine:
      break;
  }
  return "cosine";
}

Schedule::Kind parse_schedule(const std::string& text) {
  for (const Schedule::Kind kind : {Schedule::Kind::constant, Schedule::Kind::step, Schedule::Kind::cosine}) {
    if (text == name_of(kind)) {
      return kind;
    }
  }
  throw UsageError("unknown schedule '" + text + "', expected constant, step or cosine");
}

}  // namespace lockstep::nn

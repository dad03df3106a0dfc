#include <lockstep/nn/optim/schedule.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::c {
namespace {

constexpr std::size_t kOldestSchedule = sizeof(lockstep_schedule);

lockstep_schedule default_schedule() {
  lockstep_schedule schedule{};
  schedule.struct_size = sizeof(schedule);
  schedule.power = 2;
  return schedule;
}

nn::Schedule schedule_of(const lockstep_schedule& s) {
  constexpr nn::Schedule::Kind kKinds[] = {nn::Schedule::Kind::constant, nn::Schedule::Kind::cosine,
                                           nn::Schedule::Kind::polynomial};
  require<UsageError>(s.kind >= LOCKSTEP_SCHEDULE_CONSTANT && s.kind <= LOCKSTEP_SCHEDULE_POLYNOMIAL,
                      "schedule: kind is ", s.kind, ", expected LOCKSTEP_SCHEDULE_CONSTANT, _COSINE or _POLYNOMIAL");
  const bool ends = s.kind != LOCKSTEP_SCHEDULE_CONSTANT;
  require<UsageError>(!ends || s.total_steps >= 1, "schedule: total_steps is ", s.total_steps, ", expected at least 1");
  require<UsageError>(std::isfinite(s.base) && s.base > 0, "schedule: base is ", s.base,
                      ", expected a finite number above 0");
  require<UsageError>(s.warmup_steps >= 0 && (!ends || s.warmup_steps <= s.total_steps), "schedule: warmup_steps is ",
                      s.warmup_steps, ", expected at least 0", ends ? concat(" and at most ", s.total_steps) : "");
  nn::Schedule made{.kind = kKinds[s.kind], .base = s.base, .warmup_steps = s.warmup_steps};
  if (ends) {
    made.total_steps = s.total_steps;
    made.end = s.end;
    made.power = s.power;
  }
  nn::require_schedule(made);
  return made;
}

}  // namespace
}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_schedule_init(lockstep_schedule* schedule, size_t size) noexcept {
  return entry("lockstep_schedule_init",
               [&] { write_options(schedule, size, default_schedule(), kOldestSchedule, "schedule"); });
}

lockstep_status lockstep_schedule_rate(const lockstep_schedule* schedule, int64_t step, double* rate) noexcept {
  return entry("lockstep_schedule_rate", [&] {
    static_cast<void>(given(schedule, "schedule"));
    const nn::Schedule made = schedule_of(read_options(schedule, default_schedule(), kOldestSchedule, "schedule"));
    require<UsageError>(step >= 0, "step is ", step, ", expected at least 0");
    given(rate, "rate") = made.at(step);
  });
}

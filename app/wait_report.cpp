#include <lockstep/app/wait_report.hpp>

#include <algorithm>
#include <iostream>
#include <optional>
#include <vector>

#include <lockstep/app/run_header.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

constexpr std::array kTimes{WaitTime::first_steps, WaitTime::later_steps, WaitTime::between_epochs};

/// Returns the numbers of bytes in `memory` as JSON. Unknown numbers are null.
Json json_of(const MemorySummary& memory) {
  const auto bytes = [](std::size_t value) { return Json(std::uint64_t{value}); };
  const bool counted = memory.resource.has_value();
  return Json::Object{{"device", to_string(memory.device)},
                      {"total", bytes(memory.total)},
                      {"free", bytes(memory.free)},
                      {"others", bytes(memory.others)},
                      {"process", memory.process ? bytes(*memory.process) : Json()},
                      {"in_use", counted ? bytes(memory.resource->in_use) : Json()},
                      {"cached", counted ? bytes(memory.resource->cached) : Json()},
                      {"peak", counted ? bytes(memory.resource->peak) : Json()}};
}

}  // namespace

const char* name_of(WaitTime time) {
  return time == WaitTime::first_steps   ? "first steps"
         : time == WaitTime::later_steps ? "later steps"
                                         : "between epochs";
}

WaitTime wait_time(const Position& at, std::int64_t begin, std::int64_t first_steps) {
  return at.step - begin < first_steps ? WaitTime::first_steps
         : at.batch == 0               ? WaitTime::between_epochs
                                       : WaitTime::later_steps;
}

void WaitCounts::add(WaitTime time, const Synchronisation& wait) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[static_cast<std::size_t>(time)][{std::string(wait.call), std::string(name_of(wait.reason))}];
  ++count.calls;
  count.bytes += wait.bytes;
  count.seconds += wait.seconds;
}

std::string WaitCounts::text(std::int64_t first_steps) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const WaitTime time : kTimes) {
    const Counts& counts = counts_[static_cast<std::size_t>(time)];
    std::vector<std::pair<std::string, Count>> sorted;
    Count all;
    for (const auto& [key, count] : counts) {
      sorted.emplace_back(concat(key.first, ": ", key.second), count);
      all.calls += count.calls;
      all.seconds += count.seconds;
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    text += concat(text.empty() ? "  waits      " : "             ",
                   time == WaitTime::first_steps ? "first " + counted(first_steps, "step") : name_of(time), ": ",
                   all.calls == 0 ? "none" : counted(all.calls, "call") + ", " + seconds_text(all.seconds), '\n');
    for (const auto& [name, count] : sorted) {
      text += concat("               ", name, ", ", counted(count.calls, "time"), ", ", seconds_text(count.seconds),
                     count.bytes > 0 ? ", " + bytes_text(static_cast<double>(count.bytes)) : "", '\n');
    }
  }
  return text;
}

Json WaitCounts::json() const {
  const std::lock_guard lock(mutex_);
  Json::Array all;
  for (const WaitTime time : kTimes) {
    for (const auto& [key, count] : counts_[static_cast<std::size_t>(time)]) {
      all.emplace_back(Json::Object{{"when", name_of(time)},
                                    {"call", key.first},
                                    {"reason", key.second},
                                    {"count", count.calls},
                                    {"bytes", std::uint64_t{count.bytes}},
                                    {"seconds", count.seconds}});
    }
  }
  return all;
}

WaitWatch::WaitWatch(Context& context, const Trainer& trainer, std::int64_t first_steps)
    : context_(context), first_steps_(first_steps) {
  context_.on_synchronisation(
      [this, &trainer, begin = trainer.position().step, first_steps](const Synchronisation& wait) {
        counts_.add(wait_time(trainer.position(), begin, first_steps), wait);
      });
}

void WaitWatch::report(RunFolder& files) {
  const std::optional<MemorySummary> memory = memory_now(context_);
  std::cout << counts_.text(first_steps_) << (memory ? "  memory     " + to_string(*memory) + "\n" : "");
  files.write_event(
      "waits",
      {{"first_steps", first_steps_}, {"calls", counts_.json()}, {"memory", memory ? json_of(*memory) : Json()}});
}

}  // namespace lockstep::nn

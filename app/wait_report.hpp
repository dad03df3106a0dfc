#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <lockstep/app/run_folder.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/context/memory_summary.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>

/// Implements --report-waits, which reports the calls that made the host wait for the device's stream, with their times
/// (docs/tensors.md, "Waits").
namespace lockstep::nn {

/// The part of the run in which a call waited. The first steps include waits that libraries and graphs need once. A
/// wait in later steps costs every step. Between epochs, evaluations read metrics and checkpoints read parameters by
/// design.
enum class WaitTime : unsigned char {
  first_steps,     ///< up to the end of step N of this process
  later_steps,     ///< includes the metrics of reports (--log-every) and checkpoints within an epoch
  between_epochs,  ///< evaluation, checkpoints, and the first step of the next epoch
};
[[nodiscard]] const char* name_of(WaitTime time);  ///< "first steps", "later steps", "between epochs"

/// Returns the part of the run for a wait at position `at` (Trainer::position()). `begin` is this process's first step.
[[nodiscard]] WaitTime wait_time(const Position& at, std::int64_t begin, std::int64_t first_steps);

/// Counts waits by time, call and reason. Any thread may call add().
class WaitCounts {
 public:
  void add(WaitTime time, const Synchronisation& wait);
  /// Returns lines for people in the style of the header. Each WaitTime has a line ("first 10 steps: 2 calls, 1.20 ms",
  /// or "none"). Below it each call and reason has a line, most seconds first.
  [[nodiscard]] std::string text(std::int64_t first_steps) const;
  /// Returns an array of objects with when, call, reason, count, bytes and seconds.
  [[nodiscard]] Json json() const;

 private:
  struct Count {
    std::int64_t calls = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };
  using Counts = std::map<std::pair<std::string, std::string>, Count>;  ///< counts by call and reason
  mutable std::mutex mutex_;
  std::array<Counts, 3> counts_;
};

/// Counts the waits for the context's stream while this object exists. Does not see waits for other streams (the
/// trainer's copies, communication) or waits for events alone. Trainer and context must outlive this object.
class WaitWatch {
 public:
  WaitWatch(Context& context, const Trainer& trainer, std::int64_t first_steps);
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch() { context_.on_synchronisation({}); }
  /// Prints the calls that made the host wait, and the memory, and writes both to the metrics. Call it after the run.
  void report(RunFolder& files);

 private:
  Context& context_;
  std::int64_t first_steps_;
  WaitCounts counts_;
};

}  // namespace lockstep::nn

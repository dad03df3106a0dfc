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

/// The part of a run in which a call waited. Waits in the first steps include waits that libraries and graphs need only
/// once. Waits after the first steps slow down every step. Waits between epochs are intended: evaluations read metrics,
/// and checkpoints read parameters.
enum class WaitTime : unsigned char {
  first_steps,     ///< the first N steps of this process (--report-waits N)
  later_steps,     ///< steps after the first steps, including metrics of --log-every and checkpoints within an epoch
  between_epochs,  ///< evaluations, checkpoints, and the first step of the next epoch
};
[[nodiscard]] const char* name_of(WaitTime time);  ///< returns "first steps", "later steps" or "between epochs"

/// Returns the part of the run at position `at` (Trainer::position()). This process began at step `begin` of the run.
[[nodiscard]] WaitTime wait_time(const Position& at, std::int64_t begin, std::int64_t first_steps);

/// Counts waits, divided by part of the run, call and reason. Any thread may call add().
class WaitCounts {
 public:
  void add(WaitTime time, const Synchronisation& wait);
  /// Returns lines to print in the style of the program's header. Each WaitTime has a line ("first 10 steps: 2 calls,
  /// 1.20 ms", or "none"). A line for each call and reason of its waits follows; the longest total time comes first.
  [[nodiscard]] std::string text(std::int64_t first_steps) const;
  /// Returns an array of objects, one for each call and reason, with the keys "when", "call", "reason", "count",
  /// "bytes" and "seconds".
  [[nodiscard]] Json json() const;

 private:
  struct Count {
    std::int64_t calls = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };
  using Counts = std::map<std::pair<std::string, std::string>, Count>;  ///< key: call and reason
  mutable std::mutex mutex_;
  std::array<Counts, 3> counts_;
};

/// Counts how often the host waits for the context's stream while this object exists. Does not count waits for other
/// streams (the trainer's copies, communication), or for events alone. Trainer and context must outlive this object.
class WaitWatch {
 public:
  WaitWatch(Context& context, const Trainer& trainer, std::int64_t first_steps);
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch() { context_.on_synchronisation({}); }
  /// Prints the counted waits and the memory in use, and writes both to the metrics. Call report() after the run.
  void report(RunFolder& files);

 private:
  Context& context_;
  std::int64_t first_steps_;
  WaitCounts counts_;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Stops a run by a signal (RunOptions::stop) or by its time (max_seconds), which begins with this object. A signal
/// reaches the ranks at different steps, so the ranks agree. They ask each other after a step that takes stop_within or
/// longer, and after as many shorter steps as take that time.
class RunStop {
 public:
  explicit RunStop(const RunArguments& run) : run_(run), looked_at_(run.trainer.position().step) {}
  /// Asks the other ranks if it is time to ask. Call after every step. Collective.
  void look();
  /// Why the run stops; none: the run goes on. The same on every rank.
  [[nodiscard]] const std::optional<RunEnd>& end() const { return end_; }

 private:
  const RunArguments& run_;
  std::optional<RunEnd> end_;
  double begin_ = now_s();
  double looked_ = begin_;      ///< time at which the ranks asked each other last
  std::int64_t looked_at_;      ///< step after which they did
  std::int64_t next_look_ = 0;  ///< step after which they ask next
};

}  // namespace lockstep::nn::detail

#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Stops a run on a signal (RunOptions::stop) or after its time (max_seconds), which begins when this object is made. A
/// signal reaches the ranks at different steps, so the ranks must agree. The ranks ask each other whenever their steps
/// since the last question took about RunOptions::stop_within: after each step if steps are that long, otherwise after
/// several.
class RunStop {
 public:
  explicit RunStop(const RunArguments& run) : run_(run), looked_at_(run.trainer.position().step) {}
  /// Asks the other ranks if it is time to ask. Call it after every step. Collective.
  void look();
  /// Returns why the run stops; the reason is the same on every rank. Returns no value while the run continues.
  [[nodiscard]] const std::optional<RunEnd>& end() const { return end_; }

 private:
  const RunArguments& run_;
  std::optional<RunEnd> end_;
  double begin_ = now_s();
  double looked_ = begin_;      ///< time at which the ranks last asked each other
  std::int64_t looked_at_;      ///< step after which the ranks last asked each other
  std::int64_t next_look_ = 0;  ///< step after which the ranks ask each other next
};

}  // namespace lockstep::nn::detail

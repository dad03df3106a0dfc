#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Stops a run on a signal (RunOptions::stop) or after RunOptions::max_seconds, counted from this object's
/// construction. A signal reaches the ranks at different steps, so the ranks must agree on the step at which they stop.
/// For this, they exchange messages whenever about RunOptions::stop_within seconds of steps have passed: after each
/// step if steps are that long, otherwise after several steps.
class RunStop {
 public:
  explicit RunStop(const RunArguments& run) : run_(run), looked_at_(run.trainer.position().step) {}
  /// Exchanges messages with all other ranks if an exchange is due. Must be called after every step. Collective.
  void look();
  /// Returns why the run stops, or no value while the run continues. The result is the same on every rank.
  [[nodiscard]] const std::optional<RunEnd>& end() const { return end_; }

 private:
  const RunArguments& run_;
  std::optional<RunEnd> end_;
  double begin_ = now_s();
  double looked_ = begin_;      ///< time at which the ranks last exchanged messages
  std::int64_t looked_at_;      ///< step after which the ranks last exchanged messages
  std::int64_t next_look_ = 0;  ///< step after which the ranks exchange messages next
};

}  // namespace lockstep::nn::detail

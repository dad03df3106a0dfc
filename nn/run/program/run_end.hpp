#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>

/// What a training program says when it ends.
namespace lockstep::nn {

/// "93.21 %" of accuracies, "0.1234" of the rest, "not measured".
[[nodiscard]] std::string value_text(const std::string& metric, std::optional<double> value);

/// "test accuracy 93.21 %, best 93.40 %"
[[nodiscard]] std::string result_text(const RunProgress& progress);

/// How long the steps of a run wait for gradient communication, on this rank, without its first steps.
class ExposedTime final : public RunObserver {
 public:
  explicit ExposedTime(Trainer& trainer) : trainer_(trainer) {}

  void on_step_end(const StepEvent&) override {
    if (++steps_ == kFirstSteps) {
      before_ = trainer_.reducer().statistics();
    }
  }
  /// Seconds a step; none when no later step was timed.
  [[nodiscard]] std::optional<double> seconds() const {
    const comm::ReducerStatistics now = trainer_.reducer().statistics();
    const std::int64_t steps = now.steps - before_.steps;
    return steps_ > kFirstSteps && steps > 0
               ? std::optional((now.exposed_s - before_.exposed_s) / static_cast<double>(steps))
               : std::nullopt;
  }

 private:
  static constexpr std::int64_t kFirstSteps = 3;
  Trainer& trainer_;
  std::int64_t steps_ = 0;
  comm::ReducerStatistics before_;
};

}  // namespace lockstep::nn

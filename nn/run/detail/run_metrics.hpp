#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>

/// Functions that compute the metrics of a run over all ranks.
namespace lockstep::nn::detail {

[[nodiscard]] bool is_regression(const Trainer& trainer);
/// Returns the accuracy in `sums`; NaN for regressions, which have none.
[[nodiscard]] double accuracy_of(const Trainer& trainer, const Metrics& sums);

/// Returns the names of metrics, and which functions they have, as a text that must be equal on all ranks. Throws
/// UsageError for a name that is reserved or has characters that are not allowed, and for a metric without a function.
[[nodiscard]] std::string checked(const std::vector<RunMetric>& metrics);

/// Returns the values of the program's own metrics for `event`. Collective.
[[nodiscard]] MetricValues own_metrics(comm::Communicator& control, const std::vector<RunMetric>& metrics,
                                       const ReportEvent& event);

/// Implements run_evaluation(). checked() must have accepted `metrics`.
[[nodiscard]] EvaluationEvent evaluate(Trainer& trainer, comm::Communicator& control,
                                       const std::vector<RunMetric>& metrics, RunObserver& observer);

}  // namespace lockstep::nn::detail

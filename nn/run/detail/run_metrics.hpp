#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>

/// Functions for the metrics of a run over all ranks.
namespace lockstep::nn::detail {

[[nodiscard]] bool is_regression(const Trainer& trainer);
/// Returns the accuracy; NaN for regressions, which have none.
[[nodiscard]] double accuracy_of(const Trainer& trainer, const Metrics& sums);

/// Returns names and functions of metrics as a text that must be equal on all ranks. UsageError for a name that is
/// taken or has other characters than expected, and for a metric without a function.
[[nodiscard]] std::string checked(const std::vector<RunMetric>& metrics);

/// Returns the values of the program's own metrics for the event. Collective.
[[nodiscard]] MetricValues own_metrics(comm::Communicator& control, const std::vector<RunMetric>& metrics,
                                       const ReportEvent& event);

/// Implements run_evaluation() for metrics that checked() has accepted.
[[nodiscard]] EvaluationEvent evaluate(Trainer& trainer, comm::Communicator& control,
                                       const std::vector<RunMetric>& metrics, RunObserver& observer);

}  // namespace lockstep::nn::detail

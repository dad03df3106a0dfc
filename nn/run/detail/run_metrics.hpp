#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>

/// What a run measures, over all ranks.
namespace lockstep::nn::detail {

[[nodiscard]] bool is_regression(const Trainer& trainer);
/// NaN for regressions, which have none.
[[nodiscard]] double accuracy_of(const Trainer& trainer, const Metrics& sums);

/// Names and functions of metrics, as text that ranks have to agree on. UsageError for a name that is taken or spelled
/// otherwise than expected, and for a metric without a function.
[[nodiscard]] std::string checked(const std::vector<RunMetric>& metrics);

/// The metrics of one's own that the event has. Collective.
[[nodiscard]] MetricValues own_metrics(comm::Communicator& control, const std::vector<RunMetric>& metrics,
                                       const ReportEvent& event);

/// run_evaluation() with metrics that are checked.
[[nodiscard]] EvaluationEvent evaluate(Trainer& trainer, comm::Communicator& control,
                                       const std::vector<RunMetric>& metrics, RunObserver& observer);

}  // namespace lockstep::nn::detail

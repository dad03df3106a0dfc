#include <lockstep/nn/run/detail/run_metrics.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {

namespace {

/// Returns true if `name` has only allowed characters and is not a name that metrics.jsonl uses for its own values.
bool is_own_name(const std::string& name) {
  static const std::set<std::string> kOurs{"accuracy",      "comm_exposed_s",  "epoch",
                                           "event",         "gradient_bytes",  "loss",
                                           "learning_rate", "peak_bytes",      "seconds",
                                           "sent_bytes",    "skipped_updates", "step",
                                           "test_loss",     "test_accuracy",   "test_top_k_accuracy",
                                           kAverageLoss,    kAverageAccuracy};
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos &&
         kOurs.count(name) == 0 && !name.ends_with("_per_second");
}

template <class Event>
MetricValues values_of(comm::Communicator& control, const std::vector<RunMetric>& metrics,
                       std::function<MetricPart(const Event&)> RunMetric::*function, const Event& event) {
  MetricValues values;
  for (const RunMetric& metric : metrics) {
    if (!(metric.*function)) {
      continue;
    }
    const MetricPart own = (metric.*function)(event);
    const std::vector<double> sums = comm::all_gather_value(control, own.sum);
    const std::vector<double> amounts = comm::all_gather_value(control, own.amount);
    double sum = 0;
    double amount = 0;
    bool equal = true;
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      sum += sums[rank];
      amount += amounts[rank];
      equal = equal && sums[rank] == sums[0] && amounts[rank] == amounts[0];
    }
    values[metric.name] = equal ? sums[0] / amounts[0] : sum / amount;
  }
  return values;
}

}  // namespace

bool is_regression(const Trainer& trainer) {
  return trainer.evaluation_plan().layout().regression;
}

double accuracy_of(const Trainer& trainer, const Metrics& sums) {
  return is_regression(trainer) ? std::numeric_limits<double>::quiet_NaN() : sums.accuracy();
}

std::string checked(const std::vector<RunMetric>& metrics) {
  std::string text;
  std::set<std::string> names;
  for (const RunMetric& metric : metrics) {
    require<UsageError>(is_own_name(metric.name) && names.insert(metric.name).second,
                        "training run: a metric has the name '", metric.name,
                        "', expected small letters, digits and '_', and none that is taken");
    require<UsageError>(metric.of_report || metric.of_evaluation, "training run: metric ", metric.name,
                        " has no function, expected of_report or of_evaluation");
    text += concat("metric ", metric.name, metric.of_report ? " of reports" : "",
                   metric.of_evaluation ? " of evaluations\n" : "\n");
  }
  return text;
}

MetricValues own_metrics(comm::Communicator& control, const std::vector<RunMetric>& metrics, const ReportEvent& event) {
  return values_of(control, metrics, &RunMetric::of_report, event);
}

EvaluationEvent evaluate(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                         RunObserver& observer) {
  const std::int64_t step = trainer.position().step;
  observer.on_evaluation_begin({.step = step});
  const Metrics test = trainer.evaluate([&](const Batch& batch, const TensorView& output) {
    observer.on_evaluation_batch({.batch = batch, .output = output});
  });
  EvaluationEvent event{.step = step,
                        .loss = test.loss(),
                        .accuracy = accuracy_of(trainer, test),
                        .top_k = trainer.evaluation_plan().top_k(),
                        .top_k_accuracy = test.top_k_accuracy(),
                        .correct = test.correct,
                        .samples = test.samples,
                        .metrics = {}};
  event.metrics = values_of(control, metrics, &RunMetric::of_evaluation, event);
  if (trainer.options().step.average.on()) {
    const Metrics average = trainer.evaluate_average();
    event.metrics[kAverageLoss] = average.loss();
    if (!is_regression(trainer)) {
      event.metrics[kAverageAccuracy] = average.accuracy();
    }
  }
  observer.on_evaluation_end(event);
  return event;
}

}  // namespace lockstep::nn::detail

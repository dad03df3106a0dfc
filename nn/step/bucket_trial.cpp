#include <lockstep/nn/step/bucket_trial.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/comm/gradients/cost_fit.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

namespace lockstep::nn {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// The values of all ranks, element by element joined by join(a, b) in rank order. Equally many on each.
template <class Join>
std::vector<double> over_ranks(comm::Communicator& control, std::vector<double> own, const Join& join) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(control.size()));
  const auto n = static_cast<std::int64_t>(own.size());
  Stream stream = Stream::host_inline();
  control.all_gather(stream, TensorView(std::span<double>(own), {n}),
                     TensorView(std::span<double>(all), {n * control.size()}));
  std::vector<double> joined(all.begin(), all.begin() + n);
  for (std::size_t i = own.size(); i < all.size(); ++i) {
    joined[i % own.size()] = join(joined[i % own.size()], all[i]);
  }
  return joined;
}
double larger(double a, double b) {
  return std::max(a, b);
}
double smaller(double a, double b) {
  return std::min(a, b);
}

/// What this rank saw of its steps.
struct Observed {
  std::vector<double> ready_s;    ///< of each gradient, from the first: the median over the steps
  std::vector<double> bucket_s;   ///< of each step and bucket
  std::vector<double> hidden;     ///< the same: 1 where the bucket was done before the last gradient was ready
  std::vector<double> exposed_s;  ///< of each step, as ReducerStatistics has it
};

/// Takes the recorder from the reducer, also after an error.
struct Recording {
  comm::GradientReducer& reducer;
  ~Recording() {
    reducer.drain();
    try {
      reducer.record_into(nullptr);
      reducer.record_gradients(nullptr);
    } catch (...) {  // a step that failed has abandoned itself, so this does not happen
    }
  }
};

Observed observe(TrainStep& trial, const std::function<void()>& step, int steps) {
  comm::GradientReducer& reducer = trial.reducer();
  const std::size_t gradients = reducer.gradients().size();
  const std::size_t buckets = reducer.buckets().size();
  const auto count = static_cast<std::size_t>(steps);
  SpanRecorder recorder(trial.context().device(), 1, steps, count * (gradients + 6 * buckets + 4));
  std::vector<SpanRecorder::Span> spans;
  int first_name = 0;
  {
    const Recording recording{reducer};
    reducer.record_into(&recorder);
    first_name = reducer.record_gradients(&recorder);
    for (int i = 1; i <= steps; ++i) {
      recorder.begin_step(i);
      step();
    }
    trial.synchronize();
    spans = recorder.take(trial.context().stream());
  }

  std::vector<double> ready(count * gradients, kUnknown);  // seconds of the recorder's clock
  std::vector<double> ended(count * buckets, kUnknown);
  Observed seen;
  seen.bucket_s.assign(count * buckets, kUnknown);
  seen.hidden.assign(count * buckets, 0);
  seen.exposed_s.assign(count, 0);
  for (const SpanRecorder::Span& span : spans) {
    const auto at = static_cast<std::size_t>(span.step - 1);
    const SpanRecorder::Name& name = recorder.names()[static_cast<std::size_t>(span.name)];
    if (name.kind == SpanKind::reduce) {
      const std::size_t i = at * buckets + static_cast<std::size_t>(name.bucket);
      seen.bucket_s[i] = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
      ended[i] = static_cast<double>(span.end_ns) * 1e-9;
    }
    const bool waits = reducer.overlaps() ? name.kind == SpanKind::wait
                                          : name.kind == SpanKind::reduce || name.kind == SpanKind::gather;
    if (waits) {
      seen.exposed_s[at] += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
    } else if (span.name >= first_name && span.name < first_name + static_cast<int>(gradients)) {
      ready[at * gradients + static_cast<std::size_t>(span.name - first_name)] =
          static_cast<double>(span.begin_ns) * 1e-9;
    }
  }
  const auto known = [](double time) { return !std::isnan(time); };
  require<StateError>(std::all_of(ready.begin(), ready.end(), known) && std::all_of(ended.begin(), ended.end(), known),
                      "bucket trial: the trial steps did not show when gradients were ready and summed, expected steps "
                      "that are not captured (cuda_graph off)");
  std::vector<std::vector<double>> of_gradient(gradients);
  for (std::size_t at = 0; at < count; ++at) {
    const auto begin = ready.begin() + static_cast<std::ptrdiff_t>(at * gradients);
    const auto [first, last] = std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(gradients));
    for (std::size_t i = 0; i < gradients; ++i) {
      of_gradient[i].push_back(ready[at * gradients + i] - *first);
    }
    for (std::size_t k = at * buckets; k < (at + 1) * buckets; ++k) {
      seen.hidden[k] = ended[k] <= *last ? 1 : 0;
    }
  }
  for (std::vector<double>& times : of_gradient) {
    seen.ready_s.push_back(median(std::move(times)));
  }
  return seen;
}

/// Nothing of a bucket starts before all gradients ahead of its last are ready.
void ascend(std::vector<double>& times) {
  for (std::size_t i = 1; i < times.size(); ++i) {
    times[i] = std::max(times[i], times[i - 1]);
  }
}

/// What the sum of a bucket costs when nothing is computed: sizes from that of all gradients down, each half of the one
/// before.
comm::CostModel measured_cost(TrainStep& trial, comm::Communicator& control, double seconds) {
  constexpr std::int64_t kLeastBytes = 4096;
  constexpr double kNoise = 0.1;
  constexpr double kLeastTimes = 5;
  constexpr double kMostTimes = 50;
  const auto element_bytes = static_cast<std::int64_t>(size_of(trial.reducer().sent_as()));
  // Sums that need memory of their own, as large as a bucket, are timed up to the largest one of the trial: the line of
  // the model goes on from there.
  std::int64_t largest = trial.reducer().gradients().back().end;
  if (trial.reducer().bytes() > 0) {
    largest = 0;
    for (const comm::Bucket& bucket : trial.reducer().buckets()) {
      largest = std::max(largest, bucket.end - bucket.begin);
    }
  }
  std::vector<std::int64_t> sizes{largest};
  for (std::int64_t next = sizes.back() / 2; next * element_bytes >= kLeastBytes; next /= 2) {
    sizes.push_back((next + kArenaStep - 1) / kArenaStep * kArenaStep);
  }
  std::vector<comm::TimedSize> points;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const double once = over_ranks(control, {trial.time_bucket(*size, 2).back()}, larger).front();
    const double wanted = seconds / static_cast<double>(sizes.size()) / std::max(once, 1e-9);
    const auto times = static_cast<int>(std::clamp(wanted, kLeastTimes, kMostTimes));
    const double typical = median(over_ranks(control, trial.time_bucket(*size, times), smaller));
    points.push_back({static_cast<double>(*size * element_bytes), std::max(typical, 1e-9)});
  }
  return comm::fit_cost(points, {.noise = kNoise});
}

/// How much longer hidden buckets took than the model says.
double slowdown_of(const std::vector<double>& bucket_s, const std::vector<double>& hidden,
                   const std::vector<comm::Bucket>& buckets, const comm::CostModel& cost, std::int64_t element_bytes) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < bucket_s.size(); ++i) {
    const comm::Bucket& bucket = buckets[i % buckets.size()];
    const double alone = cost.predict(static_cast<double>((bucket.end - bucket.begin) * element_bytes));
    if (hidden[i] == 1 && alone > 0 && bucket_s[i] > 0) {
      ratios.push_back(bucket_s[i] / alone);
    }
  }
  return ratios.empty() ? 1 : median(std::move(ratios));
}

}  // namespace

BucketTrial try_buckets(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step,
                        const BucketTrialOptions& options) {
  require<UsageError>(options.warm_steps >= 0 && options.steps >= 1, "bucket trial: ", options.warm_steps, " and ",
                      options.steps, " steps, expected at least 0 and 1");
  require<UsageError>(std::isfinite(options.cost_seconds) && options.cost_seconds >= 0,
                      "bucket trial: cost_seconds is ", options.cost_seconds, ", expected at least 0");
  const comm::GradientReducer& reducer = trial.reducer();
  BucketTrial result{.ends = comm::ends_of(reducer.buckets())};
  if (trial.ranks() == 1 || result.ends.empty()) {
    return result;
  }
  for (int i = 0; i < options.warm_steps; ++i) {
    step();
  }
  Observed seen = observe(trial, step, options.steps);
  result.cost = options.cost.empty() ? measured_cost(trial, control, options.cost_seconds) : options.cost;
  const auto element_bytes = static_cast<std::int64_t>(size_of(reducer.sent_as()));
  double last_s = 0;  // of this rank
  if (reducer.overlaps()) {
    ascend(seen.ready_s);
    last_s = seen.ready_s.back();
    result.ready_s = over_ranks(control, seen.ready_s, larger);
    result.slowdown =
        slowdown_of(over_ranks(control, seen.bucket_s, smaller), over_ranks(control, seen.hidden, smaller),
                    reducer.buckets(), result.cost, element_bytes);
  } else {
    result.ready_s.assign(reducer.gradients().size(), 0);
  }
  const std::vector<comm::Bucket> plan =
      comm::plan_buckets_by_cost(reducer.gradients(), result.ready_s, result.cost, element_bytes, result.slowdown);
  result.ends = comm::ends_of(plan);
  const auto sum = [](double a, double b) { return a + b; };
  const double last_of_mean = over_ranks(control, {last_s}, sum).front() / control.size();
  const auto exposed = [&](std::span<const comm::Bucket> buckets) {
    return comm::finish_time(buckets, result.ready_s, result.cost, element_bytes, result.slowdown) - last_of_mean;
  };
  const double planned_s = exposed(plan);
  const double explained_s = exposed(reducer.buckets());
  const double waited_s = median(over_ranks(control, seen.exposed_s, sum)) / control.size();
  result.exposed_s = waited_s > explained_s ? planned_s + waited_s - explained_s
                     : explained_s > 0      ? planned_s * waited_s / explained_s
                                            : planned_s;

  std::string text = "the bucket plan";
  for (const int end : result.ends) {
    text += concat(' ', end);
  }
  comm::require_same_on_all_ranks(control, text);
  return result;
}

}  // namespace lockstep::nn

#include <lockstep/nn/step/bucket_trial.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <lockstep/comm/cost/cost_fit.hpp>
#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/comm/gradients/peer_plans.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/step/detail/plan_contest.hpp>
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
double sum(double a, double b) {
  return a + b;
}

/// What this rank saw of its steps.
struct Observed {
  std::vector<double> ready_s;    ///< of each gradient, from the first: the median over the steps
  std::vector<double> bucket_s;   ///< of each step and bucket
  std::vector<double> hidden;     ///< the same: the part of that time before the last gradient was ready
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
      const double beside = *last - (ended[k] - seen.bucket_s[k]);
      seen.hidden[k] = seen.bucket_s[k] > 0 ? std::clamp(beside / seen.bucket_s[k], 0.0, 1.0) : 0;
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

/// What the ranks saw together: a bucket took as long as on the rank that came last, which waited for nobody.
Observed joined(comm::Communicator& control, Observed seen) {
  const double ranks = control.size();
  ascend(seen.ready_s);
  seen.ready_s = over_ranks(control, std::move(seen.ready_s), larger);
  seen.bucket_s = over_ranks(control, std::move(seen.bucket_s), smaller);
  seen.hidden = over_ranks(control, std::move(seen.hidden), sum);
  for (double& hidden : seen.hidden) {
    hidden /= ranks;
  }
  return seen;
}

/// How much longer sums took beside backward than the costs say: what was beside it, over the work done meanwhile. Of
/// the sums that were mostly beside it.
double slowdown_of(const Observed& seen, const std::vector<comm::Bucket>& buckets, const comm::CostModel& cost,
                   std::int64_t element_bytes) {
  constexpr double kMostly = 0.5;
  double beside = 0;
  double work = 0;
  for (std::size_t i = 0; i < seen.bucket_s.size(); ++i) {
    const comm::Bucket& bucket = buckets[i % buckets.size()];
    if (seen.hidden[i] >= kMostly) {
      const double behind = (1 - seen.hidden[i]) * seen.bucket_s[i];
      beside += seen.bucket_s[i] - behind;
      work += cost.predict(static_cast<double>((bucket.end - bucket.begin) * element_bytes)) - behind;
    }
  }
  return beside > 0 && work > 0 ? beside / work : 1;
}

/// How much longer backward took beside sums than alone, of what was beside it.
double drag_of(const Observed& seen, double alone_s, int steps) {
  constexpr double kMostLost = 0.9;  // of the processors
  double beside = 0;                 // a step
  for (std::size_t i = 0; i < seen.bucket_s.size(); ++i) {
    beside += seen.hidden[i] * seen.bucket_s[i] / steps;
  }
  return beside > 0 ? 1 / (1 - std::clamp((seen.ready_s.back() - alone_s) / beside, 0.0, kMostLost)) : 1;
}

std::string text_of(const std::vector<int>& ends) {
  std::string text;
  for (const int end : ends) {
    text += concat(' ', end);
  }
  return text;
}

/// All plans to try, each once. No bucket is larger than `most` elements, but where one gradient alone is.
std::vector<comm::NamedPlan> without_doubles(std::vector<comm::NamedPlan> plans,
                                             const std::vector<comm::GradientRange>& gradients, std::int64_t most) {
  std::vector<comm::NamedPlan> kept;
  for (comm::NamedPlan& plan : plans) {
    int first = 0;
    bool fits = true;
    for (const int last : plan.ends) {
      const std::int64_t elements =
          gradients[static_cast<std::size_t>(last) - 1].end - gradients[static_cast<std::size_t>(first)].begin;
      fits = fits && (elements <= most || last == first + 1);
      first = last;
    }
    if (fits && std::none_of(kept.begin(), kept.end(), [&](const auto& other) { return other.ends == plan.ends; })) {
      kept.push_back(std::move(plan));
    }
  }
  return kept;
}

/// `ends` with a last bucket of at most 1 MiB, as the default plan has it.
std::vector<int> with_small_last(const std::vector<int>& ends, const std::vector<comm::GradientRange>& gradients,
                                 std::int64_t element_bytes) {
  comm::BucketOptions options;
  options.element_bytes = element_bytes;
  const int tail = comm::plan_buckets(gradients, options).back().first;
  std::vector<int> result;
  std::copy_if(ends.begin(), ends.end(), std::back_inserter(result), [&](int end) { return end < tail; });
  if (tail > 0) {
    result.push_back(tail);
  }
  result.push_back(ends.back());
  return result;
}

/// Turns of plans on this rank. Ranks tell each other in collect() alone: who waited for the others before each turn
/// would not have what a run has, that a rank is late because its last update or its batch took long.
class Turns {
 public:
  Turns(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step)
      : trial_(trial), control_(control), step_(step) {}

  void take(const std::vector<int>& ends, int steps) {
    if (comm::ends_of(trial_.reducer().buckets()) != ends) {
      trial_.replan_buckets(ends);
    }
    const double before = trial_.reducer().statistics().exposed_s;  // the streams are idle
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) {
      step_();
    }
    trial_.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    own_.push_back((trial_.reducer().statistics().exposed_s - before) / steps);
    own_.push_back(seconds / steps);
  }

  /// The means over the ranks.
  [[nodiscard]] std::vector<detail::Turn> collect() {
    std::vector<detail::Turn> turns;
    if (!own_.empty()) {
      const std::vector<double> all = over_ranks(control_, std::exchange(own_, {}), sum);
      for (std::size_t i = 0; i < all.size(); i += 2) {
        turns.push_back({all[i] / control_.size(), all[i + 1] / control_.size()});
      }
    }
    return turns;
  }

 private:
  TrainStep& trial_;
  comm::Communicator& control_;
  const std::function<void()>& step_;
  std::vector<double> own_;  ///< exposed and whole, of each turn
};

/// Tries the plans, and takes the best.
void try_plans(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step,
               const BucketTrialOptions& options, const std::vector<comm::NamedPlan>& plans, BucketTrial& result) {
  std::string text;  // ranks with different plans would wait for each other in the first step
  std::vector<std::size_t> buckets;
  for (const comm::NamedPlan& plan : plans) {
    text += concat("the bucket plan", text_of(plan.ends), '\n');
    buckets.push_back(plan.ends.size());
  }
  comm::require_same_on_all_ranks(control, text);
  Turns turns(trial, control, step);
  const detail::ContestResult contest = detail::hold_contest(
      buckets,
      {.steps = options.contest_steps, .turn = 1 + trial.steps_under_way(), .confirm_steps = options.confirm_steps},
      [&](std::size_t plan, int of_turn) { turns.take(plans[plan].ends, of_turn); }, [&] { return turns.collect(); });
  result.steps += contest.steps;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::vector<detail::Turn>& made = contest.turns[i];
    TriedPlan tried{.name = plans[i].name, .ends = plans[i].ends, .turns = static_cast<int>(made.size())};
    if (!made.empty()) {
      tried.exposed_s = detail::typical(made, &detail::Turn::exposed_s);
      tried.step_s = detail::typical(made, &detail::Turn::step_s);
    }
    result.tried.push_back(std::move(tried));
  }
  result.ends = plans[contest.best].ends;
  result.name = plans[contest.best].name;
  const std::vector<detail::Turn>& told = contest.confirmed.empty() ? contest.turns[contest.best] : contest.confirmed;
  if (!told.empty()) {
    const detail::Estimate exposed = detail::exposed_of(told);
    result.exposed_s = exposed.mean;
    result.exposed_error_s = exposed.error;
  }
}

}  // namespace

BucketTrial try_buckets(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step,
                        const BucketTrialOptions& options) {
  require<UsageError>(
      options.warm_steps >= 0 && options.steps >= 1 && options.contest_steps >= 0 && options.confirm_steps >= 0,
      "bucket trial: ", options.warm_steps, ", ", options.steps, ", ", options.contest_steps, " and ",
      options.confirm_steps, " steps, expected at least 0, 1, 0 and 0");
  require<UsageError>(std::isfinite(options.cost_seconds) && options.cost_seconds >= 0,
                      "bucket trial: cost_seconds is ", options.cost_seconds, ", expected at least 0");
  const std::vector<comm::GradientRange> gradients = trial.reducer().gradients();
  const std::vector<comm::Bucket> own = trial.reducer().buckets();
  BucketTrial result{.ends = comm::ends_of(own)};
  if (trial.ranks() == 1 || own.empty()) {
    return result;
  }
  for (int i = 0; i < options.warm_steps; ++i) {
    step();
  }
  const Observed mine = observe(trial, step, options.steps);
  result.steps = options.warm_steps + options.steps;
  result.cost = options.cost.empty() ? measured_cost(trial, control, options.cost_seconds) : options.cost;
  const auto element_bytes = static_cast<std::int64_t>(size_of(trial.reducer().sent_as()));
  const bool overlaps = trial.reducer().overlaps();
  const bool tries = options.contest_steps > 0 && trial.replan_obstacle().empty();
  // What needs memory of its own, as large as a bucket, is not given more than the plan at hand or a default one takes.
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (trial.reducer().bytes() > 0) {
    most = comm::BucketOptions().head_bytes / element_bytes;
    for (const comm::Bucket& bucket : own) {
      most = std::max(most, bucket.end - bucket.begin);
    }
  }
  const std::vector<int> one_bucket{static_cast<int>(gradients.size())};
  comm::OverlapModel model{.all_reduce = result.cost};
  std::vector<double> alone_s;  // when gradients are ready beside no sum; empty: not measured
  double last_s = 0;            // of this rank
  if (overlaps) {
    std::vector<double> ready = mine.ready_s;
    ascend(ready);
    last_s = ready.back();
    const Observed seen = joined(control, mine);
    result.ready_s = seen.ready_s;
    model.slowdown = slowdown_of(seen, own, result.cost, element_bytes);
    if (tries && gradients.back().end - gradients.front().begin <= most) {
      const int steps = (options.steps + 1) / 2;
      trial.replan_buckets(one_bucket);
      alone_s = joined(control, observe(trial, step, steps)).ready_s;
      result.steps += steps;
      model.drag = drag_of(seen, alone_s.back(), options.steps);
    }
  } else {
    result.ready_s.assign(gradients.size(), 0);
  }
  result.slowdown = model.slowdown;
  result.drag = model.drag;
  const std::vector<comm::Bucket> plan =
      comm::plan_buckets_by_cost(gradients, result.ready_s, result.cost, element_bytes, result.slowdown, most);
  result.ends = comm::ends_of(plan);
  result.name = "search";
  const double last_of_mean = over_ranks(control, {last_s}, sum).front() / control.size();
  const auto exposed = [&](std::span<const comm::Bucket> buckets) {
    return comm::finish_time(buckets, result.ready_s, result.cost, element_bytes, result.slowdown) - last_of_mean;
  };
  const double planned_s = exposed(plan);
  const double explained_s = exposed(own);
  const double waited_s = median(over_ranks(control, mine.exposed_s, sum)) / control.size();
  result.exposed_s = waited_s > explained_s ? planned_s + waited_s - explained_s
                     : explained_s > 0      ? planned_s * waited_s / explained_s
                                            : planned_s;
  if (tries) {
    std::vector<comm::NamedPlan> plans{{"search", result.ends}};
    if (!alone_s.empty()) {
      plans.push_back(
          {"search with drag", comm::ends_of(comm::plan_buckets_by_overlap(gradients, alone_s, model, element_bytes))});
    }
    plans.push_back({"as given", comm::ends_of(own)});
    const std::vector<comm::NamedPlan> peers = comm::peer_plans(gradients, result.ready_s, model, element_bytes);
    plans.insert(plans.end(), peers.begin(), peers.end());
    plans.push_back({"1 and 25 MiB, then 1", with_small_last(peers.front().ends, gradients, element_bytes)});
    plans.push_back({"one bucket", one_bucket});
    try_plans(trial, control, step, options, without_doubles(std::move(plans), gradients, most), result);
  }
  comm::require_same_on_all_ranks(control, "the bucket plan" + text_of(result.ends));
  return result;
}

}  // namespace lockstep::nn

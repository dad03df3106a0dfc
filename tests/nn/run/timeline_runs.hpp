#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>
#include <lockstep/nn/run/timeline.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/json.hpp>

/// Traced runs, and checks that must hold for every file that they write.
namespace lockstep::nn {

/// Wraps the data set `of`. Reading a sample takes the additional time `a_sample`. The slow rank reads from this data
/// set.
class SlowDataset final : public Dataset {
 public:
  SlowDataset(const Dataset& of, std::chrono::milliseconds a_sample)
      : Dataset(of.name(), of.size(), {of.fields().begin(), of.fields().end()}), of_(of), a_sample_(a_sample) {}
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override {
    std::this_thread::sleep_for(a_sample_);
    of_.read_sample(index, out);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return of_.fingerprint(); }

 private:
  const Dataset& of_;
  std::chrono::milliseconds a_sample_;
};

struct TracedRun {
  std::string file{};  ///< empty: no trace
  TraceSteps steps{.first = 2, .last = 5};
  int slow_rank = -1;                     ///< rank that reads its samples slowly; -1: none
  std::chrono::milliseconds a_sample{8};  ///< additional time to read a sample on the slow rank (5 samples a step)
  bool overlap = true;
  Strategy strategy = Strategy::ddp;
  std::int64_t accumulate = 1;
  std::int64_t fails_behind = 0;  ///< step after which all ranks throw and rank 0 saves its timeline; 0: never
};

/// Ends a run by throwing after a step.
class FailsBehind final : public RunObserver {
 public:
  explicit FailsBehind(std::int64_t step) : step_(step) {}
  void on_step_end(const StepEvent& event) override {
    require<StateError>(event.step != step_, "the run fails after step ", step_);
  }

 private:
  std::int64_t step_;
};

struct TracedOutcome {
  std::optional<TimelineSummary> summary;
  std::vector<float> parameters;
  comm::ReducerStatistics reducer;  ///< statistics summed over all steps
  std::size_t buckets = 0;
};

/// Runs ten steps of a small ResNet, two epochs with their evaluations, as one of two ranks.
inline TracedOutcome run_traced(const TracedRun& run, comm::Communicator& grad, comm::Communicator& control) {
  const DataSplit split =
      open_data({.seed = 5, .synthetic = {.train_size = 55, .test_size = 7, .height = 12, .width = 12, .classes = 4}});
  const SlowDataset slow(*split.train, grad.rank() == run.slow_rank ? run.a_sample : std::chrono::milliseconds(0));
  const Model model = cifar_resnet(8, 4, 12, 12);
  CpuContext context({.threads = 1});
  Stream worker = Stream::host_worker("comm");
  TrainerOptions options{.global_batch = 11, .accumulate = run.accumulate, .loader_workers = 0};
  options.schedule.total_steps = 10;
  options.step.buckets.bucket_bytes = 100000;
  options.step.strategy = run.strategy;
  std::optional<RunTrace> trace;
  Trainer trainer(context, {grad, control, run.overlap ? worker : context.stream()}, model,
                  TrainingData{slow, *split.test}, options);
  trainer.start();
  FailsBehind failing(run.fails_behind);
  RunObservers observers;
  if (!run.file.empty()) {
    observers.add(trace.emplace(trainer, control, run.file, run.steps));
    trace->start();
  }
  observers.add(failing);
  TracedOutcome outcome;
  try {
    (void)run_training(trainer, control, RunIdentity{}, {.epochs = 2}, {}, observers);
    if (trace) {
      trace->stop();
      outcome.summary = trace->write();
    }
  } catch (const StateError&) {
    if (grad.rank() == 0) {
      trace->save_own();
    }
  }
  worker.synchronize();
  const auto values = trainer.parameters().values().span<float>();
  outcome.parameters.assign(values.begin(), values.end());
  outcome.reducer = trainer.reducer().statistics();
  outcome.buckets = trainer.reducer().buckets().size();
  return outcome;
}

/// An event of a timeline, as a viewer reads it.
struct TraceEvent {
  std::string name{};
  std::string category{};
  std::int64_t rank = 0;
  std::int64_t thread = 0;
  double begin_us = 0;
  double end_us = 0;
  std::int64_t step = 0;
  std::int64_t bucket = -1;
};

/// Reads a timeline and checks it against the trace event format: keys and their types, no time below 0, names for
/// every process and thread. Spans of a thread must be nested or disjoint.
inline std::vector<TraceEvent> checked_timeline(const std::string& file) {
  const Json root = read_json(file);
  EXPECT_EQ(root.get<std::string>("displayTimeUnit", file), "ms");
  std::vector<TraceEvent> events;
  std::set<std::pair<std::int64_t, std::int64_t>> named;
  for (const Json& json : root.get<Json::Array>("traceEvents", file)) {
    const std::string text = json.text();
    const auto kind = json.get<std::string>("ph", text);
    TraceEvent event{.name = json.get<std::string>("name", text),
                     .rank = json.get<std::int64_t>("pid", text),
                     .thread = json.get<std::int64_t>("tid", text)};
    EXPECT_GE(event.rank, 0) << text;
    const Json& arguments = json.member("args", text);
    if (kind == "M") {
      EXPECT_TRUE(event.name == "process_name" || event.name == "thread_name") << text;
      EXPECT_FALSE(arguments.get<std::string>("name", text).empty()) << text;
      named.insert({event.rank, event.name == "process_name" ? -1 : event.thread});
      continue;
    }
    EXPECT_TRUE(kind == "X" || kind == "i") << text;
    event.category = json.get<std::string>("cat", text);
    event.begin_us = json.get<double>("ts", text);
    event.end_us = event.begin_us;
    EXPECT_GE(event.begin_us, 0) << text;
    if (kind == "X") {
      EXPECT_GE(json.get<double>("dur", text), 0) << text;
      event.end_us += json.get<double>("dur", text);
    } else {
      EXPECT_EQ(json.get<std::string>("s", text), "t");
      EXPECT_EQ(event.category, "ready");
    }
    event.step = arguments.get<std::int64_t>("step", text);
    if (arguments.has("bucket")) {
      event.bucket = arguments.get<std::int64_t>("bucket", text);
    }
    EXPECT_EQ(named.count({event.rank, -1}), 1U) << text;
    EXPECT_EQ(named.count({event.rank, event.thread}), 1U) << text;
    events.push_back(event);
  }
  // Spans of a thread must be nested or disjoint. Times are decimals in microseconds, whose sums are rounded, so a
  // difference of kRounding (10 ps) is allowed.
  constexpr double kRounding = 1e-5;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<TraceEvent>> threads;
  for (const TraceEvent& event : events) {
    threads[{event.rank, event.thread}].push_back(event);
  }
  for (auto& [thread, spans] : threads) {
    std::stable_sort(spans.begin(), spans.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_us < b.begin_us || (a.begin_us == b.begin_us && a.end_us > b.end_us);
    });
    std::vector<double> open;
    for (const TraceEvent& span : spans) {
      while (!open.empty() && open.back() <= span.begin_us + kRounding) {
        open.pop_back();
      }
      EXPECT_TRUE(open.empty() || span.end_us <= open.back() + kRounding)
          << span.name << " of rank " << thread.first << ", step " << span.step << " overlaps another span";
      open.push_back(span.end_us);
    }
  }
  return events;
}

/// Expects for every bucket of every step on every rank: one event "ready", then one "reduced". Also expects that the
/// ranks' sums of a bucket overlap in time, up to the error of the clocks.
inline void expect_buckets(const std::vector<TraceEvent>& events, int ranks, const TraceSteps& steps,
                           std::size_t buckets, double clock_error_s) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, TraceEvent>> ready;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, TraceEvent>> reduced;
  for (const TraceEvent& event : events) {
    if (event.category == "ready" || event.category == "reduce") {
      auto& found = (event.category == "ready" ? ready : reduced)[{event.step, event.bucket}];
      EXPECT_TRUE(found.emplace(event.rank, event).second) << event.name << " twice in step " << event.step;
    }
  }
  EXPECT_EQ(reduced.size(), buckets * static_cast<std::size_t>(steps.last - steps.first + 1));
  for (const auto& [bucket, by_rank] : reduced) {
    ASSERT_EQ(by_rank.size(), static_cast<std::size_t>(ranks));
    ASSERT_EQ(ready[bucket].size(), static_cast<std::size_t>(ranks));
    double last_begin = 0;
    double first_end = HUGE_VAL;
    for (const auto& [rank, sum] : by_rank) {
      EXPECT_LE(ready[bucket][rank].begin_us, sum.begin_us);
      EXPECT_LE(sum.begin_us, sum.end_us);
      last_begin = std::max(last_begin, sum.begin_us);
      first_end = std::min(first_end, sum.end_us);
    }
    EXPECT_LE(last_begin, first_end + 2e6 * clock_error_s) << "step " << bucket.first << ", bucket " << bucket.second;
  }
}

/// Expects that the summary names rank 1, which is late in every step, and that the file shows its delay.
inline void expect_late_rank(const TracedRun& run, const TracedOutcome& outcome) {
  const Json::Object json = outcome.summary->json();
  const std::vector<TraceEvent> events = checked_timeline(run.file);
  expect_buckets(events, 2, run.steps, outcome.buckets, json.at("clock_error_s").as<double>("clock_error_s"));
  const auto steps = run.steps.last - run.steps.first + 1;
  const std::vector<TimelineSummary::WaitedFor> waited = outcome.summary->waited_for();
  ASSERT_EQ(waited.size(), 2U);
  EXPECT_EQ(waited[0].times + waited[1].times, steps * static_cast<std::int64_t>(outcome.buckets));
  if (run.overlap) {  // without overlap, a rank computes the next bucket only after the previous bucket's sum
    EXPECT_GT(waited[1].times, 3 * waited[0].times);
  }
  const double delay = 5 * std::chrono::duration<double>(run.a_sample).count();  // rank 1 has 5 of 11 samples
  EXPECT_GE(waited[1].seconds, 0.5 * delay * static_cast<double>(steps)) << "what the machine does meanwhile is less";
  EXPECT_GT(waited[1].seconds, 2 * waited[0].seconds);
  EXPECT_NE(outcome.summary->text("f").find("waited most for rank 1: "), std::string::npos)
      << outcome.summary->text("f");
  double loader = 0;
  for (const TraceEvent& event : events) {
    loader += event.category == "batch" && event.rank == 1 ? event.end_us - event.begin_us : 0;
  }
  EXPECT_GE(loader, 1e6 * delay * static_cast<double>(steps)) << "the reason is in the file";
}

}  // namespace lockstep::nn

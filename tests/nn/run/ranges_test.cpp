// Tests the NVTX ranges of a run with a tool that NVTX loads (tests/support/nvtx/tool.hpp). The tests also run without
// a tool; then nothing may be recorded.
#include <pthread.h>

#include <algorithm>

#include <lockstep/nn/run/observers/run_trace.hpp>

#include "tests/comm/wrapped_communicator.hpp"
#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/nvtx/tool.hpp"

namespace lockstep::nn {
namespace {

using Lines = std::vector<std::string>;
using testing::tool_record;

Model mlp() {
  return make_model({.name = "mlp", .classes = 4, .height = 12, .width = 12, .hidden = {20, 10}});
}

TrainerOptions small_options(std::int64_t accumulate = 1) {
  TrainerOptions options{.global_batch = 11, .accumulate = accumulate};
  options.step.buckets.bucket_bytes = options.step.buckets.tail_bytes = 1000;
  return options;
}

/// Records the ranges that the calling thread reports to the tool while this object lives.
class Told {
 public:
  Told() : record_(tool_record()), from_(record_ != nullptr ? record_->events.load() : 0) {}
  [[nodiscard]] bool attached() const { return record_ != nullptr; }
  [[nodiscard]] Lines lines() const {
    EXPECT_EQ(record_->faults, 0);
    return testing::ranges_of_thread(*record_, from_, pthread_self());
  }

 private:
  const testing::ToolRecord* record_;
  int from_;
};

/// Returns the names of the ranges that a plan's calls report in a step.
Lines calls_of(const Plan& plan) {
  Lines names;
  for (const Call& call : plan.calls()) {
    names.push_back("  " + call.layer + " " + call.op);
  }
  return names;
}

/// Returns those of `lines` that are also in `wanted`, in the order of `lines`.
Lines filtered(const Lines& lines, const Lines& wanted) {
  Lines found;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(found),
               [&](const std::string& line) { return std::find(wanted.begin(), wanted.end(), line) != wanted.end(); });
  return found;
}

std::int64_t count(const Lines& lines, const std::string& line) {
  return std::count(lines.begin(), lines.end(), line);
}

/// Expects the ranges of a step with `accumulate` micro-batches and an update. With `overlap`, buckets are summed on
/// another stream.
void expect_step(const Lines& lines, Trainer& trainer, std::int64_t accumulate, bool overlap) {
  const Lines calls = calls_of(trainer.train_plan());
  const auto buckets = static_cast<std::int64_t>(trainer.reducer().buckets().size());
  ASSERT_GT(buckets, 2);
  ASSERT_GE(lines.size(), 4U);
  EXPECT_EQ(lines[0], "step");
  EXPECT_EQ(lines[1], "  waiting for the loader");
  EXPECT_EQ(lines[2], "  input");
  EXPECT_EQ(lines.back(), "  update");
  EXPECT_EQ(count(lines, "step"), 1);
  EXPECT_EQ(count(lines, "  input"), accumulate);
  const Lines found = filtered(lines, calls);
  EXPECT_EQ(Lines(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(calls.size())), calls);
  EXPECT_GE(found.size(), calls.size() * static_cast<std::size_t>(accumulate));
  // Each bucket must have a mark ("ready") and then the range of its sum, in the order of the buckets.
  Lines sums;
  Lines expected;
  for (const std::string& line : lines) {
    if (line.find("bucket") != std::string::npos) {
      sums.push_back(line);
    }
  }
  for (std::int64_t k = 0; k < buckets; ++k) {
    expected.push_back(concat("  bucket ", k, " ready !"));
    expected.push_back(concat(overlap ? "  bucket " : "    bucket ", k));
  }
  EXPECT_EQ(sums, expected);
  EXPECT_EQ(count(lines, "  waiting for the communication"), overlap ? 1 : buckets);
}

TEST_F(TrainerTest, RangesOfAStep) {
  const auto small = [](std::int64_t accumulate, bool overlap) {
    return TrainerSetup{.ranks = 2, .options = small_options(accumulate), .model = mlp(), .overlap = overlap};
  };
  for (const bool overlap : {true, false}) {
    for (const std::int64_t accumulate : {1, 2}) {
      on_trainers(small(accumulate, overlap), [&](Trainer& trainer) {
        EXPECT_EQ(trainer.train_step().recorder() != nullptr, testing::wants_tool());
        for (int i = 0; i < 3; ++i) {
          const Told told;
          trainer.step();
          EXPECT_EQ(told.attached(), testing::wants_tool());
          if (told.attached()) {
            expect_step(told.lines(), trainer, accumulate, overlap);
          }
        }
        trainer.train_step().synchronize();
      });
    }
  }
}

/// Tests the ranges of a whole run, without and with a timeline. The timeline's recorder replaces the step's own
/// recorder.
TEST_F(TrainerTest, RangesOfARun) {
  TrainerSetup setup{.options = small_options(), .model = mlp()};
  setup.options.step.average.decay = 0.9;
  for (const bool trace : {false, true}) {
    const std::string folder = path(trace ? "traced" : "plain");
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      std::optional<RunTrace> timeline;
      const Told told;
      RunObservers observers;
      if (trace) {
        observers.add(timeline.emplace(trainer, control, path("t.json"), TraceSteps{.first = 2, .last = 3}));
        timeline->start();
      }
      (void)run_training(trainer, control, nn::identity_of(trainer), {.epochs = 1, .checkpoint_dir = folder}, {},
                         observers);
      if (trace) {
        timeline->stop();
        EXPECT_NE(timeline->write().text("t").find("steps 2 to 3"), std::string::npos);
        EXPECT_EQ(trainer.train_step().recorder() != nullptr, told.attached()) << "the step's own again";
      }
      trainer.step();
      if (told.attached()) {
        const Lines lines = told.lines();
        Lines outer;
        std::copy_if(lines.begin(), lines.end(), std::back_inserter(outer),
                     [](const std::string& line) { return line.front() != ' '; });
        EXPECT_EQ(outer, (Lines{"step", "step", "step", "step", "step", "step", "evaluation",
                                "evaluation of the average", "checkpoint", "checkpoint", "step"}));
        EXPECT_EQ(count(lines, "  update"), 7);
        EXPECT_EQ(count(lines, "  moving average"), 7);
      }
    });
  }
}

/// A communicator that fails in an all-reduce, in the middle of a step.
class FailingSum final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  void all_reduce(Stream& stream, const TensorView& data) override {
    require<StateError>(--until_failure != 0, "the all-reduce that fails");
    WrappedCommunicator::all_reduce(stream, data);
  }
  int until_failure = 0;
};

TEST_F(TrainerTest, RangesOfAStepThatFails) {
  const DataSplit data = small_data();
  comm::on_ranks(1, [&](comm::Communicator& inner) {
    FailingSum grad(inner);
    const auto control = inner.split(0, 0);
    CpuContext context({.threads = 1});
    Trainer trainer(context, {grad, *control, context.stream()}, mlp(), data, small_options());
    trainer.start();
    grad.until_failure = 2;
    const Told failed;
    EXPECT_THROW(trainer.step(), StateError);
    if (failed.attached()) {
      const Lines lines = failed.lines();
      EXPECT_EQ(lines.front(), "step");
      EXPECT_EQ(lines.back(), "    bucket 1") << "all ranges have ended";
    }
    const Told after;
    trainer.step();
    if (after.attached()) {
      expect_step(after.lines(), trainer, 1, false);
    }
  });
}

}  // namespace
}  // namespace lockstep::nn

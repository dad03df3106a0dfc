// Runs under mpirun, on two ranks: the plan of the gradient buckets that trial steps lead to.
#include <lockstep/nn/step/bucket_trial.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/comm/mpi_test_main.hpp"

namespace lockstep::nn {
namespace {

/// Eight tensors: few enough to try every plan.
Model small_model() {
  ModelBuilder builder = ModelBuilder::for_images("four layers", {12, 12, 3});
  NodeId x = builder.linear("fc1", builder.input(), 40, {.activation = ops::Activation::relu});
  x = builder.linear("fc2", x, 30, {.activation = ops::Activation::relu});
  x = builder.linear("fc3", x, 20, {.activation = ops::Activation::relu});
  builder.linear("fc4", x, 4);
  return builder.build();
}

struct Ranks2 {
  std::unique_ptr<comm::Communicator> grad = comm::make_mpi_communicator(MPI_COMM_WORLD);
  std::unique_ptr<comm::Communicator> control = comm::make_mpi_communicator(MPI_COMM_WORLD);
};

/// Every rank's plan, as text.
std::vector<std::string> plans(comm::Communicator& control, const std::vector<int>& ends) {
  std::string text;
  for (const int end : ends) {
    text += " " + std::to_string(end);
  }
  return comm::all_gather_text(control, text);
}

/// The earliest end of all plans.
double least_finish(const std::vector<comm::GradientRange>& gradients, const BucketTrial& trial) {
  double least = std::numeric_limits<double>::infinity();
  const int n = static_cast<int>(gradients.size());
  for (unsigned cuts = 0; cuts < 1U << (n - 1); ++cuts) {
    comm::BucketOptions options;
    for (int i = 1; i <= n; ++i) {
      if (i == n || ((cuts >> (i - 1)) & 1U) != 0) {
        options.ends.push_back(i);
      }
    }
    least = std::min(
        least, comm::finish_time(comm::plan_buckets(gradients, options), trial.ready_s, trial.cost, 4, trial.slowdown));
  }
  return least;
}

/// The steps are ours, so that it is known when gradients are ready at the earliest: rank 1 is slow in the middle,
/// rank 0 at the end.
TEST(BucketTrial, ReadyTimesAreThoseOfTheSlowestRankAndThePlanIsTheBest) {
  const Ranks2 ranks;
  if (!ranks.grad->can_overlap()) {
    GTEST_SKIP() << "this MPI cannot run beside the computing thread";
  }
  CpuContext context({.threads = 1});
  Stream worker = Stream::host_worker("comm");
  const Model model = small_model();
  TrainStepOptions options{.max_batch = 4, .count_samples = false};
  options.buckets.bucket_bytes = 4000;
  TrainStep step(context, {*ranks.grad, worker}, model, options);
  comm::GradientReducer& reducer = step.reducer();
  const auto& gradients = reducer.gradients();
  ASSERT_EQ(gradients.size(), 8U);
  constexpr std::array<int, 8> kMilliseconds[2] = {{0, 1, 1, 1, 1, 1, 9, 1}, {0, 1, 8, 1, 1, 1, 1, 1}};
  const auto& own = kMilliseconds[ranks.grad->rank()];
  int made = 0;
  const auto one = [&] {
    ++made;
    reducer.begin_step();
    for (int i = 0; i < 8; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(own[static_cast<std::size_t>(i)]));
      for (int write = 0; write < gradients[static_cast<std::size_t>(i)].expected_writes; ++write) {
        reducer.gradient_written(i);
      }
    }
    reducer.finish();
    step.synchronize();
  };
  BucketTrialOptions how{.warm_steps = 1, .steps = 5};
  how.cost.pieces = {{0, 2e-3, 1e-7}};  // 2 ms and 0.1 ms a kB: several buckets
  const BucketTrial trial = try_buckets(step, *ranks.control, one, how);
  EXPECT_EQ(made, 6);
  EXPECT_EQ(trial.cost, how.cost);
  ASSERT_EQ(trial.ready_s.size(), 8U);
  EXPECT_EQ(trial.ready_s[0], 0);
  std::array<double, 2> sums{};
  for (std::size_t i = 1; i < 8; ++i) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      sums[rank] += 1e-3 * kMilliseconds[rank][i];
    }
    EXPECT_GE(trial.ready_s[i], 0.999 * std::max(sums[0], sums[1])) << i;  // who sleeps does not wake too early
    EXPECT_GE(trial.ready_s[i], trial.ready_s[i - 1]);
  }
  const std::vector<std::string> all = plans(*ranks.control, trial.ends);
  EXPECT_EQ(all[0], all[1]);
  comm::BucketOptions planned;
  planned.ends = trial.ends;
  const double finish =
      comm::finish_time(comm::plan_buckets(gradients, planned), trial.ready_s, trial.cost, 4, trial.slowdown);
  const double least = least_finish(gradients, trial);
  EXPECT_LE(finish, least + 0.0011 * (least - trial.ready_s.back()));
  EXPECT_GT(trial.exposed_s, 0);
  EXPECT_LT(trial.exposed_s, 1);
  EXPECT_GT(trial.slowdown, 0);

  // The reducer is as before: nothing records, and other steps give other times.
  EXPECT_NO_THROW(one());
  how.warm_steps = 0;
  const auto failing = [] { throw DataError("a step fails on every rank"); };
  EXPECT_THROW((void)try_buckets(step, *ranks.control, failing, how), DataError);
  EXPECT_NO_THROW(one());
  EXPECT_THROW((void)try_buckets(
                   step, *ranks.control, [] {}, how),
               StateError)
      << "steps that show nothing";
}

/// Trainers of all kinds: the plan is one of theirs, the same on both ranks, and what is trained with it is the same
/// each time.
TEST(BucketTrial, EveryKindOfStepTakesItsPlan) {
  const Ranks2 ranks;
  DataOptions data_options;
  data_options.synthetic = {.train_size = 40, .test_size = 8, .height = 12, .width = 12, .classes = 4};
  const DataSplit data = open_data(data_options);
  const Model model = cifar_resnet(8, 4, 12, 12);
  struct Kind {
    bool overlap;
    Strategy strategy;
    std::int64_t accumulate;
    DType reduce_dtype;
    comm::SumOrder order;
  };
  for (const Kind& kind : {Kind{true, Strategy::ddp, 1, DType::f32, comm::SumOrder::library},
                           Kind{true, Strategy::zero1, 2, DType::f32, comm::SumOrder::library},
                           Kind{false, Strategy::ddp, 2, DType::bf16, comm::SumOrder::ranks}}) {
    CpuContext context({.threads = 1});
    const bool overlap = kind.overlap && ranks.grad->can_overlap();
    Stream worker = overlap ? Stream::host_worker("comm") : Stream::host_inline();
    TrainerOptions options;
    options.global_batch = 8;
    options.accumulate = kind.accumulate;
    options.strategy = kind.strategy;
    options.sum_order = kind.order;
    options.reduce_dtype = kind.reduce_dtype;
    options.schedule.total_steps = 4;
    options.buckets.bucket_bytes = 20000;
    const auto with_trainer = [&](const std::function<void(Trainer&)>& body) {
      Trainer trainer(context, {*ranks.grad, *ranks.control, worker}, model, data, options);
      trainer.start();
      body(trainer);
    };
    BucketTrial trial;
    with_trainer([&](Trainer& trainer) {
      trial = try_buckets(trainer.train_step(), *ranks.control, [&] { trainer.step(); },
                          {.warm_steps = 2, .steps = 3, .cost_seconds = 0.05});
      EXPECT_EQ(trainer.position().step, 5);
    });
    const std::vector<std::string> all = plans(*ranks.control, trial.ends);
    EXPECT_EQ(all[0], all[1]);
    EXPECT_GT(trial.exposed_s, 0);
    EXPECT_TRUE(std::isfinite(trial.exposed_s));
    EXPECT_FALSE(trial.cost.empty());
    EXPECT_EQ(trial.ready_s.back() > 0, overlap) << "where nothing overlaps only the sum of the costs counts";
    options.buckets = {};
    options.buckets.ends = trial.ends;
    std::vector<std::vector<float>> outcomes;
    for (int i = 0; i < 2; ++i) {
      with_trainer([&](Trainer& trainer) {
        EXPECT_EQ(comm::ends_of(trainer.reducer().buckets()), trial.ends);
        for (int s = 0; s < 3; ++s) {
          trainer.step();
        }
        trainer.train_step().synchronize();
        trainer.require_same_state();
        const auto values = trainer.parameters().values().span<float>();
        outcomes.emplace_back(values.begin(), values.end());
      });
    }
    EXPECT_TRUE(outcomes[0] == outcomes[1]);
  }
}

TEST(BucketTrial, OneRankKeepsItsPlanAndMakesNoStep) {
  const auto alone = comm::LocalGroup(1).communicator(0);
  CpuContext context({.threads = 1});
  const Model model = small_model();
  TrainStep step(context, model, {.max_batch = 4});
  const BucketTrial trial = try_buckets(step, *alone, [] { FAIL() << "a step"; });
  EXPECT_EQ(trial.ends, comm::ends_of(step.reducer().buckets()));
  EXPECT_EQ(trial.exposed_s, 0);
  EXPECT_THROW((void)try_buckets(step, *alone, [] {}, {.steps = 0}), UsageError);
  EXPECT_THROW((void)try_buckets(step, *alone, [] {}, {.cost_seconds = std::nan("")}), UsageError);
  EXPECT_THROW((void)step.time_bucket(0, 1), UsageError);
  EXPECT_THROW((void)step.time_bucket(std::int64_t{1} << 40, 1), UsageError);
}

}  // namespace
}  // namespace lockstep::nn

int main(int argc, char** argv) {
  return lockstep::comm::mpi_test_main(argc, argv);
}

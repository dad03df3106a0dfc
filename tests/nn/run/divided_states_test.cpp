// Tests Strategy::zero1, which divides the optimizer's states over the ranks. Parameters and files must equal those of
// ddp.
#include <utility>

#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

/// A user's update rule on the host, with a state: v = v / 2 + g; p -= rate * v. Clipping does not apply to it.
class Halving final : public UpdateRule {
 public:
  [[nodiscard]] std::string name() const override { return "halving"; }
  [[nodiscard]] std::vector<std::string> states() const override { return {"v"}; }
  void update(Context& context, const ops::ArenaUpdate& u, const States& states) const override {
    context.stream().enqueue([u, v = states.arenas[0]] {
      const double factor = u.factor.given() ? *u.factor.as<float>() : 1.0;
      for (std::int64_t i = 0; i < u.parameters.numel(); ++i) {
        float& velocity = v.as<float>()[i];
        velocity = velocity / 2 + static_cast<float>(factor * u.gradients.as<float>()[i]);
        u.parameters.as<float>()[i] -= static_cast<float>(*u.learning_rate.as<double>()) * velocity;
      }
    });
  }
};

class DividedStates : public TrainerTest {};

/// Returns a view of `values`, which must outlive the view.
TensorView view(const std::vector<double>& values) {
  return TensorView(std::span(const_cast<std::vector<double>&>(values)), {static_cast<std::int64_t>(values.size())});
}

/// Trains two runs with the settings of `setup`, one with Strategy::ddp and one with Strategy::zero1.
void train_both(RunSetup setup, const std::string& ddp, const std::string& zero1) {
  setup.dir = ddp;
  train(setup);
  setup.dir = zero1;
  setup.strategy = Strategy::zero1;
  train(setup);
}

TEST_F(DividedStates, EveryOptimizerWritesTheFilesOfDdp) {
  const std::vector<std::pair<std::string, OptimizerOptions>> optimizers{
      {"plain", {.momentum = 0}},
      {"nesterov", {.nesterov = true}},
      {"adam", {.kind = OptimizerKind::adam}},
      {"adamw", {.kind = OptimizerKind::adamw}},
      {"rule", {.rule = std::make_shared<Halving>()}}};
  for (const int ranks : {2, 4}) {
    for (const auto& [name, optimizer] : optimizers) {
      SCOPED_TRACE(concat(name, ", ", ranks, " ranks"));
      train_both({.ranks = ranks, .optimizer = optimizer, .sums = {.order = comm::SumOrder::ranks}}, path("ddp"),
                 path("zero1"));
      expect_files("ddp/last", "zero1/last");
    }
  }
}

TEST_F(DividedStates, InMicrobatchesAndInBf16) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RunSetup setup{.ranks = 2, .dtype = dtype, .accumulate = 3};
    train_both(setup, path("ddp"), path("zero1"));
    expect_files("ddp/last", "zero1/last");  // two ranks have only one order of a sum, so the bytes are equal
    setup.seed = 2;
    setup.dir = path("other");
    train(setup);
    EXPECT_FALSE(file_text(path("zero1/last/optimizer.safetensors")) ==
                 file_text(path("other/last/optimizer.safetensors")));
  }
}

constexpr std::pair<Strategy, Strategy> kOneAfterTheOther[] = {{Strategy::ddp, Strategy::zero1},
                                                               {Strategy::zero1, Strategy::ddp}};

TEST_F(DividedStates, ARunContinuesUnderTheOtherStrategy) {
  const OptimizerOptions adam{.kind = OptimizerKind::adam};
  train({.ranks = 2, .dir = path("whole"), .optimizer = adam});
  for (const auto& [first, second] : kOneAfterTheOther) {
    train({.ranks = 2, .steps = 8, .dir = path("part"), .optimizer = adam, .strategy = first});
    train({.ranks = 2, .dir = path("part"), .resume = path("part/last"), .optimizer = adam, .strategy = second});
    expect_files("whole/last", "part/last");
  }
}

TEST_F(DividedStates, OtherRanksTakeTheirPartsFromTheFile) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::lars}) {
    const OptimizerOptions optimizer{.kind = kind};
    train({.ranks = 2, .steps = 8, .dir = path("run"), .optimizer = optimizer, .strategy = Strategy::zero1});
    const SafetensorsFile before(path("run/last/optimizer.safetensors"));
    for (const int ranks : {1, 3}) {
      resume_and_save_again(
          ranks, path("run/last"), path("again"),
          [&](TrainerOptions& o, int) {
            o.step.optimizer = optimizer;
            o.step.strategy = Strategy::zero1;
            o.step.buckets.bucket_bytes = 50000;
          },
          [](Trainer& trainer) { return trainer.take_metrics().loss(); });
      const SafetensorsFile after(path("again/optimizer.safetensors"));
      int compared = 0;
      for (const TensorEntry& entry : before.entries()) {
        if (entry.name != "rank_buffers") {
          const TensorEntry* found = after.find(entry.name);
          ASSERT_NE(found, nullptr) << entry.name;
          std::vector<std::byte> a(entry.bytes);
          std::vector<std::byte> b(found->bytes);
          before.read(entry, a);
          after.read(*found, b);
          EXPECT_TRUE(a == b) << entry.name << ", " << ranks << " ranks";
          ++compared;
        }
      }
      EXPECT_GT(compared, 20);
    }
  }
}

/// Returns the parameters of the last rank after `count` steps in f64.
std::vector<double> parameters(int ranks, int count, const TrainStepOptions& step) {
  std::vector<double> values;
  TrainerSetup setup{.ranks = ranks, .options = {.global_batch = 11, .step = step}};
  setup.options.step.plan.dtype = DType::f64;
  on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
    steps(trainer, count);
    trainer.require_same_state();
    if (control.rank() == ranks - 1) {
      values = testing::to_doubles(trainer.parameters().values());
    }
  });
  return values;
}

TEST_F(DividedStates, ClippingSumsTheNormOverTheRanks) {
  const auto after = [](Strategy strategy, double clip_norm) {
    return parameters(3, 3, {.optimizer = {.clip_norm = clip_norm}, .weight_decay = 1e-4, .strategy = strategy});
  };
  const std::vector<double> whole = after(Strategy::ddp, 0.1);
  testing::expect_close(view(after(Strategy::zero1, 0.1)), view(whole), 1e-12);
  EXPECT_FALSE(testing::is_close(view(after(Strategy::zero1, 0)), view(whole), 1e-6));
}

/// Strategy::zero1 must give the parameters of Strategy::ddp up to rounding in f64. The gradients have the same bits,
/// but zero1 sums the squares for the norms of tensors in another order.
TEST_F(DividedStates, LarsSumsTheNormsOfItsTensorsOverTheRanks) {
  for (const int ranks : {1, 2, 4}) {
    const auto after = [&](Strategy strategy, double trust_coefficient) {
      TrainStepOptions step{.weight_decay = 0.01, .strategy = strategy};
      step.sums.order = comm::SumOrder::ranks;
      step.buckets.bucket_bytes = 20000;
      step.optimizer = {.kind = OptimizerKind::lars, .trust_coefficient = trust_coefficient};
      return parameters(ranks, 4, step);
    };
    const std::vector<double> whole = after(Strategy::ddp, 0.01);
    testing::expect_close(view(after(Strategy::zero1, 0.01)), view(whole), 1e-12);
    EXPECT_FALSE(testing::is_close(view(after(Strategy::zero1, 0.01 * (1 + 1e-6))), view(whole), 1e-12))
        << "the control";
  }
}

TEST_F(DividedStates, LarsContinuesUnderTheOtherStrategy) {
  const OptimizerOptions lars{.kind = OptimizerKind::lars, .trust_coefficient = 0.01};
  const double whole = train({.ranks = 2, .dir = path("whole"), .optimizer = lars}).metrics.loss();
  for (const auto& [first, second] : kOneAfterTheOther) {
    train({.ranks = 2, .steps = 8, .dir = path("part"), .optimizer = lars, .strategy = first});
    const RunSetup rest{
        .ranks = 2, .dir = path("part"), .resume = path("part/last"), .optimizer = lars, .strategy = second};
    EXPECT_NEAR(train(rest).metrics.loss(), whole, 1e-5 * whole);
    EXPECT_EQ(file_text(path("part/last/optimizer.safetensors")).size(),
              file_text(path("whole/last/optimizer.safetensors")).size());
  }
}

TEST_F(DividedStates, ARankKeepsItsShare) {
  for (const int ranks : {1, 2, 4}) {
    TrainerSetup setup{.ranks = ranks, .started = false};
    setup.options.step.strategy = Strategy::zero1;
    setup.options.step.optimizer.kind = OptimizerKind::adam;
    on_trainers(setup, [&](Trainer& trainer) {
      const ParameterSet& set = trainer.parameters();
      const auto whole = static_cast<double>(2 * set.gradients().bytes());
      const auto rests = static_cast<double>(trainer.reducer().buckets().size() * 2 * 4) *
                         static_cast<double>(ranks * comm::kShardStep);
      EXPECT_GE(static_cast<double>(set.state_bytes()), whole / ranks);
      EXPECT_LE(static_cast<double>(set.state_bytes()), whole / ranks + rests);
      EXPECT_LT(rests, 0.1 * whole);
    });
  }
}

TEST_F(DividedStates, WhatCannotBeDividedIsRefused) {
  TrainerSetup setup{.ranks = 2, .started = false};
  setup.options.step.strategy = Strategy::zero1;
  setup.options.step.optimizer.kind = OptimizerKind::lars;
  setup.options.step.virtual_ranks = 2;
  expect_all_say(with_trainers(setup, [](Trainer&) {}), "zero1 adds norms by rank");
  CpuContext context;
  ParameterSet set(context, mlp({4, 4, 3}, {5}, 3), DType::f32);
  const std::int64_t n = set.trainable_numel();
  testing::expect_holds(error_of<ShapeError>([&] { set.shard_states({comm::shards_of(128, n, 2)}, 0, 2); }),
                        "begin at 0");
  testing::expect_holds(error_of<ShapeError>([&] { set.shard_states({comm::shards_of(0, n - 128, 2)}, 0, 2); }),
                        "end at");
  set.shard_states({comm::shards_of(0, n, 2)}, 1, 2);
  const TensorView state = set.add_state(context, "m");
  const std::int64_t part = set.state_shards()[0].part;
  EXPECT_GT(part, 0);
  EXPECT_EQ(set.state_range(state, part, 2 * part).data, state.data);
  EXPECT_THROW((void)set.state_range(state, 0, part), ShapeError) << "the part of rank 0";
  EXPECT_THROW((void)set.state_range(state, part - 1, part + 1), ShapeError) << "of both ranks";
  EXPECT_THROW(set.shard_states({comm::shards_of(0, n, 2)}, 1, 2), StateError);
}

}  // namespace
}  // namespace lockstep::nn

// Tests the check for gradients that are not finite. The check's error must name the tensor and the rank. The step must
// change nothing, and the run must end or continue.
#include <cstring>
#include <limits>

#include <lockstep/comm/error.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/train_step.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

using Texts = std::vector<std::string>;

constexpr double kRate = 1e-6;

/// Returns the model y = w2 * tanh(w1 * x + b1) + b2. Gradients are ready in the order 2.weight, 2.bias, 1.weight,
/// 1.bias, or with each bias first.
Model small_net() {
  ModelBuilder b("small", {1});
  b.linear("2", b.linear("1", b.input(), 1, {.activation = ops::Activation::tanh}), 1);
  return b.build();
}

struct Case {
  int ranks = 1;
  DType dtype = DType::f32;
  std::int64_t microbatches = 1;
  std::int64_t virtual_ranks = 0;
  Strategy strategy = Strategy::ddp;
  comm::SumOptions sums{};
  LossScale loss_scale{};
  bool check = true;
};

/// One rank's step with parameters w1 = 0, b1 = 0, b2 = 0 and w2 as given. With targets of -1 the gradient of w1 is a
/// positive multiple of w2 * x; all other gradients are finite however large x is.
class Steps {
 public:
  Steps(comm::Communicator& grad, const Case& setup, double w2)
      : setup_(setup),
        control_(grad.split(0, grad.rank())),
        step_(context_, {grad, context_.stream()}, small_net(), options_of(setup)) {
    ParameterSet& set = step_.parameters();
    for (int i = 0; i < 4; ++i) {
      fill_with(set.value(i), set.parameters()[static_cast<std::size_t>(i)].spec.name == "2.weight" ? w2 : 0);
    }
  }

  /// Makes a step of micro-batches of one sample: the first is `x`, the others 0. The rate is so small that tanh does
  /// not reach its flat part.
  void update(double x) {
    const std::int64_t count = setup_.virtual_ranks > 0 ? setup_.virtual_ranks / step_.ranks() : setup_.microbatches;
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = i == 0 ? x : 0;
      std::vector<double> wide[2] = {{value}, {-1}};
      std::vector<float> narrow[2] = {{static_cast<float>(value)}, {-1}};
      const auto view = [&](int field) {
        return setup_.dtype == DType::f64 ? TensorView(std::span(wide[field]), {1, 1})
                                          : TensorView(std::span(narrow[field]), {1, 1});
      };
      Batch batch;
      batch.fields = {{StateField::values, view(0)}, {StateField::targets, view(1)}};
      if (count == 1) {
        step_.update(batch, kRate);
      } else {
        step_.add(batch);
      }
    }
    if (count > 1) {
      step_.update(kRate);
    }
  }
  [[nodiscard]] std::string found(std::int64_t step) { return step_.non_finite_gradients(step, *control_); }
  [[nodiscard]] std::vector<double> values() { return testing::to_doubles(step_.parameters().values()); }
  [[nodiscard]] TrainStep& step() { return step_; }

 private:
  static TrainStepOptions options_of(const Case& setup) {
    return {.max_batch = 1,
            .microbatches = setup.virtual_ranks > 0 ? 0 : setup.microbatches,
            .virtual_ranks = setup.virtual_ranks,
            .plan = {.dtype = setup.dtype, .loss = Loss::mse},
            .optimizer = {.loss_scale = setup.loss_scale},
            .sums = setup.sums,
            .strategy = setup.strategy,
            .check_gradients = setup.check};
  }
  static void fill_with(const TensorView& view, double value) {
    if (view.dtype == DType::f64) {
      view.span<double>()[0] = value;
    } else {
      view.span<float>()[0] = static_cast<float>(value);
    }
  }

  Case setup_;
  CpuContext context_{CpuContextOptions{.threads = 1}};
  std::unique_ptr<comm::Communicator> control_;
  TrainStep step_;
};

double largest(DType dtype) {
  return dtype == DType::f64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
}

std::vector<Case> setups() {
  std::vector<Case> all;
  const LossScale dynamic{.kind = LossScale::Kind::dynamic, .initial = 1024};
  for (const int ranks : {1, 2, 4}) {
    all.push_back({.ranks = ranks});
    all.push_back({.ranks = ranks, .dtype = DType::f64});
    all.push_back({.ranks = ranks, .microbatches = 3});
    all.push_back({.ranks = ranks, .virtual_ranks = 8});
    all.push_back({.ranks = ranks, .strategy = Strategy::zero1});
    all.push_back({.ranks = ranks, .sums = {.order = comm::SumOrder::ranks}});
    all.push_back({.ranks = ranks, .loss_scale = dynamic});
  }
  return all;
}

TEST(GradientCheck, NamesTheTensorAndTheRankAndLeavesTheStepOut) {
  for (const Case& setup : setups()) {
    const int culprit = setup.ranks - 1;
    comm::on_ranks(setup.ranks, [&](comm::Communicator& grad) {
      Steps steps(grad, setup, 1000);
      Case unchecked = setup;
      unchecked.check = false;
      unchecked.loss_scale = {};
      std::optional<Steps> good;  // the oracle, which never makes the second step
      if (!setup.loss_scale.scales()) {
        good.emplace(grad, unchecked, 1000);
      }
      for (int step = 1; step <= 4; ++step) {
        steps.update(step == 2 && grad.rank() == culprit ? largest(setup.dtype) : 0);
        (void)steps.step().wait_loss();
        EXPECT_EQ(steps.found(step), step == 2 ? concat("rank ", culprit, ": 1.weight") : "") << setup.ranks;
        if (step != 2 && good) {
          good->update(0);
          EXPECT_EQ(steps.values(), good->values()) << setup.ranks << " ranks, step " << step;
        }
        for (const double value : steps.values()) {
          EXPECT_TRUE(std::isfinite(value));
        }
      }
      EXPECT_EQ(steps.found(2), concat("rank ", culprit, ": 1.weight")) << "still kept";
    });
  }
}

TEST(GradientCheck, NotANumberIsNamedWhereBackwardMetItFirst) {
  comm::on_ranks(2, [](comm::Communicator& grad) {
    Steps steps(grad, {.ranks = 2}, 1);
    steps.update(grad.rank() == 0 ? std::nan("") : 1);
    const std::string first = steps.step().parameters().trainable()[0].spec.name;
    EXPECT_EQ(first.substr(0, 2), "2.");
    EXPECT_EQ(steps.found(1), concat("rank 0: ", first, " and 3 written after it"));
    steps.update(std::nan(""));
    EXPECT_EQ(steps.found(2),
              concat("rank 0: ", first, " and 3 written after it; rank 1: ", first, " and 3 written after it"));
  });
}

TEST(GradientCheck, ASumOfFiniteGradientsMayOverflow) {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
    comm::on_ranks(2, [&](comm::Communicator& grad) {
      // The loss weights a sample by 1/2, so that the gradient of w1 is x on each rank.
      Steps steps(grad, {.ranks = 2, .strategy = strategy}, 1);
      steps.update(0.4 * largest(DType::f32));
      EXPECT_EQ(steps.found(1), "") << "the control: 0.8 of the largest";
      Steps larger(grad, {.ranks = 2, .strategy = strategy}, 1);
      larger.update(0.6 * largest(DType::f32));
      EXPECT_EQ(larger.found(1), "those of each rank are, their sum over the ranks is not");
    });
  }
}

TEST(GradientCheck, FiveRanksAreFourNamesAndOneMore) {
  comm::on_ranks(6, [](comm::Communicator& grad) {
    Steps steps(grad, {.ranks = 6}, 1000);
    steps.update(grad.rank() == 2 ? 0.5 : largest(DType::f32));
    EXPECT_EQ(steps.found(1), "rank 0: 1.weight; rank 1: 1.weight; rank 3: 1.weight; rank 4: 1.weight; 1 rank more");
  });
}

TEST(GradientCheck, OnlyWhereItIsOnAndOfStepsThatAreThere) {
  comm::on_ranks(1, [](comm::Communicator& grad) {
    Steps off(grad, {.check = false}, 1);
    off.update(1);
    testing::expect_holds(error_of<StateError>([&] { (void)off.found(1); }),
                          "without checks, expected TrainStepOptions::check_gradients");
    Steps steps(grad, {}, 1);
    for (int i = 0; i < 9; ++i) {
      steps.update(1);
    }
    EXPECT_EQ(steps.found(2), "");
    for (const std::int64_t step : {0, 1, 10}) {
      testing::expect_holds(error_of<StateError>([&] { (void)steps.found(step); }),
                            concat("non_finite_gradients(", step, "), expected one of the last steps"));
    }
  });
}

/// An observer that makes the bias of rank 1 infinite during step 3, and keeps the events.
class BreakAStep final : public RunObserver {
 public:
  BreakAStep(Trainer& trainer, int rank) : trainer_(trainer), rank_(rank) {}
  void on_step_begin(const StepEvent& event) override {
    const ParameterSet& set = trainer_.parameters();
    float& bias = set.value(set.find("fc.bias")).span<float>()[0];
    if (rank_ == 1 && event.step == 3) {
      kept_ = bias;
      bias = std::numeric_limits<float>::infinity();
    } else if (rank_ == 1 && event.step == 4) {
      bias = kept_;
    }
  }
  void on_non_finite(const NonFiniteEvent& event) override {
    told.push_back(concat("step ", event.step, ": ", event.gradients));
  }
  Texts told;

 private:
  Trainer& trainer_;
  int rank_;
  float kept_ = 0;
};

class GradientCheckRun : public TrainerTest {};

TEST_F(GradientCheckRun, EndsARunThatMayNotSkipAndTellsOneThatMay) {
  for (const OptimizerOptions& optimizer :
       {OptimizerOptions{}, OptimizerOptions{.skip_non_finite = true}, OptimizerOptions{.clip_norm = 1},
        OptimizerOptions{.loss_scale = {.kind = LossScale::Kind::dynamic, .initial = 1024}}}) {
    const bool ends = !optimizer.skip_non_finite && optimizer.clip_norm == 0 && !optimizer.loss_scale.scales();
    const std::string dir =
        path(concat("run", optimizer.clip_norm, optimizer.skip_non_finite, optimizer.loss_scale.scales()));
    TrainerSetup setup{.ranks = 2};
    setup.options.step.optimizer = optimizer;
    setup.options.step.check_gradients = true;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      BreakAStep observer(trainer, control.rank());
      const RunOptions options{.steps = 5, .checkpoint_dir = dir, .checkpoint_every = 1};
      try {
        run_training(trainer, control, {}, options, {}, observer);
        EXPECT_FALSE(ends);
        ASSERT_EQ(observer.told.size(), 1U);
        testing::expect_holds(observer.told[0], "step 3: rank 1: fc.");
        EXPECT_EQ(observer.told[0].find("rank 0"), std::string::npos) << observer.told[0];
        EXPECT_EQ(trainer.skipped_updates(), 1);
      } catch (const GradientError& error) {
        EXPECT_TRUE(ends) << error.what();
        testing::expect_holds(error.what(), "step 3: gradients are not finite: rank 1: fc.");
        testing::expect_holds(error.what(), " written after it");
        EXPECT_EQ(error.code(), exit_code::kFailure);
        EXPECT_NE(dynamic_cast<const comm::FoundTogether*>(&error), nullptr);
        EXPECT_EQ(observer.told, Texts{});
      }
    });
    // A checkpoint must not have the parameters of the broken step.
    testing::expect_holds(file_text(dir + "/last/state.json"), concat("\"step\": ", ends ? 2 : 5));
  }
}

TEST_F(GradientCheckRun, ChangesNoBitOfARunThatIsFinite) {
  std::vector<double> values[2];
  for (const bool check : {false, true}) {
    TrainerSetup setup{.ranks = 2};
    setup.options.step.check_gradients = check;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      RunObserver silent;
      run_training(trainer, control, {}, {.steps = 5}, {}, silent);
      if (control.rank() == 0) {
        values[check ? 1 : 0] = testing::to_doubles(trainer.parameters().values());
      }
    });
  }
  EXPECT_EQ(values[0], values[1]);
}

TEST_F(GradientCheckRun, RanksThatDifferInTheCheckAreTold) {
  const auto differ = [](TrainerOptions& o, int rank) { o.step.check_gradients = rank == 1; };
  expect_all_say(with_trainers({.ranks = 2, .change = differ}, [](Trainer&) {}), "check_gradients");
}

}  // namespace
}  // namespace lockstep::nn

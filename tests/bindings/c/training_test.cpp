// Tests training in the C interface, with one rank and with several. Ranks are threads of this program, and exchange
// data through functions of the program.
#include "team.hpp"

namespace host {
namespace {

/// Computes the expected results: a line y = w x + b, mean squared error, plain gradient descent.
struct PlainLine {
  double w, b;
  /// Makes one step on samples (x, y). Returns the loss before the step.
  double step(const std::vector<double>& x, const std::vector<double>& y, double rate) {
    double dw = 0, db = 0, loss = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = w * x[i] + b - y[i];
      dw += 2 * error * x[i];
      db += 2 * error;
      loss += error * error;
    }
    const auto n = static_cast<double>(x.size());
    w -= rate * dw / n;
    b -= rate * db / n;
    return loss / n;
  }
};

PlainLine line_of(lockstep_model model) {
  return {parameter(model, "1.weight", {1, 1})[0], parameter(model, "1.bias", {1})[0]};
}

class TrainingTest : public ::testing::Test {
 protected:
  void create(const lockstep_trainer_options& options) {
    ASSERT_TRUE(ok(lockstep_trainer_create(model, comm, &options, &trainer)));
  }
  HostContext context;
  SelfComm comm{context};
  Mlp model{context, {1, 1}};
  Trainer trainer;
};

TEST_F(TrainingTest, StepsAreThoseOfGradientDescentByHand) {
  PlainLine plain = line_of(model);
  create(descent(4));
  EXPECT_EQ(line_of(model).w, plain.w);  // creating a trainer does not change the parameters
  std::int64_t step = -1;
  double loss = -1;
  ASSERT_TRUE(ok(lockstep_trainer_loss(trainer, 0, &loss, &step)));
  EXPECT_EQ(step, 0);
  EXPECT_TRUE(std::isnan(loss)) << "there was no step";
  const std::vector<double> first{0.5, -1, 2}, first_y{2, -1, 5}, second{0.25}, second_y{3};
  std::vector<double> all = first, all_y = first_y;
  all.insert(all.end(), second.begin(), second.end());
  all_y.insert(all_y.end(), second_y.begin(), second_y.end());
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(ok(add(trainer, first, first_y)));
    ASSERT_TRUE(ok(add(trainer, {}, {})));  // adds no sample
    ASSERT_TRUE(ok(add(trainer, second, second_y)));
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
    EXPECT_NEAR(loss_of(trainer, &step), plain.step(all, all_y, 0.1), 1e-12);
    EXPECT_EQ(step, i);
    EXPECT_NEAR(line_of(model).w, plain.w, 1e-12);
    EXPECT_NEAR(line_of(model).b, plain.b, 1e-12);
  }
  // Inference uses the trained parameters.
  double x = 3, y = 0;
  ASSERT_TRUE(ok(infer(model, View(&x, {1, 1}), View(&y, {1, 1}))));
  EXPECT_NEAR(y, 3 * plain.w + plain.b, 1e-12);
}

// With LOCKSTEP_VERIFY=1, lockstep compares each library call with its own kernels. The libraries are right, so
// lockstep must still use them, and the results must not change.
TEST_F(TrainingTest, TheEnvironmentAsksForAComparisonOfLibraries) {
  const auto loss_after_a_step = [&] {
    const Mlp checked(context, {1, 1});
    const NewTrainer one(checked, comm, descent(4));
    EXPECT_TRUE(ok(add(one, {0.5, -1, 2}, {2, -1, 5})));
    EXPECT_TRUE(ok(lockstep_trainer_update(one, 0.1)));
    return loss_of(one);
  };
  const double expected = loss_after_a_step();
  ::setenv("LOCKSTEP_VERIFY", "1", 1);
  EXPECT_EQ(loss_after_a_step(), expected);
  ::setenv("LOCKSTEP_VERIFY", "on", 1);
  lockstep_trainer_options options = descent(4);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, comm, &options, &trainer),
                    {"LOCKSTEP_VERIFY is 'on'", "expected 0 or 1"}));
  ::unsetenv("LOCKSTEP_VERIFY");
}

// A weight of 2 has the same effect as two equal samples. A weight of 0 has the same effect as a missing sample,
// whatever its values.
TEST_F(TrainingTest, WeightsCountSamplesAndElements) {
  for (const std::int32_t kind : {LOCKSTEP_WEIGHTS_SAMPLE, LOCKSTEP_WEIGHTS_ELEMENT}) {
    const Mlp weighed(context, {1, 1});
    PlainLine plain = line_of(weighed);
    lockstep_trainer_options options = descent(4);
    options.weights = kind;
    const NewTrainer with(weighed, comm, options);
    double x[] = {1, -0.5, 3}, y[] = {2, 0.25, 1000};
    float weight[] = {2, 1, 0};
    const View in(x, {3, 1}), target(y, {3, 1});
    const bool each = kind == LOCKSTEP_WEIGHTS_ELEMENT;
    View weights(weight, each ? std::vector<std::int64_t>{3, 1} : std::vector<std::int64_t>{3}, each ? "nc" : "n");
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(ok(add(with, in, target, &weights)));
      ASSERT_TRUE(ok(lockstep_trainer_update(with, 0.1)));
      EXPECT_NEAR(loss_of(with), plain.step({1, 1, -0.5}, {2, 2, 0.25}, 0.1), 1e-12);
      EXPECT_NEAR(line_of(weighed).w, plain.w, 1e-12);
      EXPECT_NEAR(line_of(weighed).b, plain.b, 1e-12);
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add(with, in, target), {"weight is NULL", "expected a view"}));
    View short_one(weight, {2}, "n");
    EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, add(with, in, target, &short_one)));
  }
}

TEST_F(TrainingTest, WhatIsAbandonedIsForgotten) {
  PlainLine plain = line_of(model);
  create(descent(2));
  ASSERT_TRUE(ok(add(trainer, {100}, {-100})));
  ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_update(trainer, 0.1), {"nothing was added"}));
  ASSERT_TRUE(ok(add(trainer, {1}, {1})));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  plain.step({1}, {1}, 0.1);
  EXPECT_NEAR(line_of(model).w, plain.w, 1e-12);
}

TEST_F(TrainingTest, GoesOnFromASavedState) {
  const std::string folder = temporary("state");
  create(trainer_options(2));  // default optimizer Adam, so the trainer has optimizer state
  const auto steps = [](lockstep_trainer which, int from, int to) {
    for (int i = from; i < to; ++i) {
      ASSERT_TRUE(ok(add(which, {draw(static_cast<std::uint64_t>(i)), 0.5}, {1, draw(7)})));
      ASSERT_TRUE(ok(lockstep_trainer_update(which, 0.01)));
    }
  };
  steps(trainer, 0, 5);
  ASSERT_TRUE(ok(lockstep_trainer_save(trainer, folder.c_str(), 0)));
  steps(trainer, 5, 9);
  const Mlp other(context, {1, 1}, LOCKSTEP_F64, 99);
  const NewTrainer again(other, comm, trainer_options(2));
  ASSERT_TRUE(ok(lockstep_trainer_load(again, folder.c_str(), 0)));
  steps(again, 5, 9);
  EXPECT_EQ(line_of(other).w, line_of(model).w);
  EXPECT_EQ(line_of(other).b, line_of(model).b);
  std::int64_t step = 0;
  (void)loss_of(again, &step);
  EXPECT_EQ(step, 9);
  // A model without a trainer can also load the trainer's folder.
  const BareMlp reader(context, {1, 1}, LOCKSTEP_F64, 0);
  EXPECT_TRUE(ok(lockstep_model_load(reader, folder.c_str(), 0)));
  ASSERT_TRUE(ok(add(again, {1}, {1})));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_load(again, folder.c_str(), 0), {"added"}));
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_IO, lockstep_trainer_load(trainer, folder.c_str(), 0), {folder}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_IO, lockstep_trainer_save(trainer, "/proc/none/state", 0), {"/proc/none"}));
}

TEST_F(TrainingTest, ClassesAreLabels) {
  const Mlp classes(context, {2, 3}, LOCKSTEP_F32);
  lockstep_trainer_options options = trainer_options(3);
  options.loss = LOCKSTEP_LOSS_CROSS_ENTROPY;
  ASSERT_TRUE(ok(lockstep_trainer_create(classes, comm, &options, &trainer)));
  float x[] = {1, 0, 0, 1, -1, -1};
  std::int64_t labels[] = {0, 1, 2};
  const View in(x, {3, 2}), target(labels, {3});
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(ok(add(trainer, in, target)));
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
    if (i == 0) {
      EXPECT_GT(loss_of(trainer), 0.3);
    }
  }
  EXPECT_LT(loss_of(trainer), 0.01);
  for (const std::int64_t wrong : {std::int64_t{3}, std::int64_t{-1}, (std::int64_t{1} << 32) + 1}) {
    labels[1] = wrong;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_FORMAT, add(trainer, in, target),
                      {"target: element (1) is " + std::to_string(wrong), "0 to 2"}));
  }
  double numbers[] = {0, kNan, 2};
  EXPECT_TRUE(fails(LOCKSTEP_ERR_DTYPE, add(trainer, in, View(numbers, {3})), {"target: dtype is f64", "integer"}));
  EXPECT_LT(loss_of(trainer), 0.01);  // the failed calls have not changed the model
}

TEST_F(TrainingTest, ALabelBesideAWeightOfZeroIsAnyNumberOfI32) {
  const Mlp classes(context, {2, 3}, LOCKSTEP_F32);
  lockstep_trainer_options options = trainer_options(2);
  options.loss = LOCKSTEP_LOSS_CROSS_ENTROPY;
  options.weights = LOCKSTEP_WEIGHTS_SAMPLE;
  ASSERT_TRUE(ok(lockstep_trainer_create(classes, comm, &options, &trainer)));
  float x[] = {1, 0, 0, 1};
  float weights[] = {1, 0};
  std::int64_t labels[] = {0, -1};
  const View in(x, {2, 2}), target(labels, {2});
  View weight(weights, {2});
  ASSERT_TRUE(ok(add(trainer, in, target, &weight)));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  (void)loss_of(trainer);
  labels[1] = (std::int64_t{1} << 32) + 1;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_FORMAT, add(trainer, in, target, &weight), {"element (1) is 4294967297"}));
}

TEST_F(TrainingTest, FrozenParametersStayAndHaveNoGradient) {
  const BareMlp frozen(context, {2, 5, 3});
  ASSERT_TRUE(ok(lockstep_model_freeze(frozen, "1", 0)));
  ASSERT_TRUE(ok(lockstep_model_freeze(frozen, "2.bias_not_part", 6)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_freeze(frozen, "3", 0), {"no parameter '3'", "1, 2"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_freeze(frozen, nullptr, 0), {"name is NULL"}));
  ASSERT_TRUE(ok(lockstep_model_initialise(frozen, 1)));
  EXPECT_TRUE(is(LOCKSTEP_ERR_STATE, lockstep_model_freeze(frozen, "2", 0)));
  const Mlp all(context, {2, 5, 3});
  EXPECT_EQ(parameter(frozen, "1.weight", {5, 2}), parameter(all, "1.weight", {5, 2})) << "values do not depend on it";
  const NewTrainer first(frozen, comm, descent(4)), second(all, comm, descent(4));
  const std::vector<double> weight = parameter(frozen, "1.weight", {5, 2}), bias = parameter(frozen, "2.bias", {3});
  std::vector<double> x = drawn(8), y = drawn(12, 50);
  for (const lockstep_trainer each : {lockstep_trainer(first), lockstep_trainer(second)}) {
    ASSERT_TRUE(ok(add(each, View(x.data(), {4, 2}), View(y.data(), {4, 3}))));
    ASSERT_TRUE(ok(lockstep_trainer_update(each, 0.1)));
  }
  EXPECT_EQ(parameter(frozen, "1.weight", {5, 2}), weight);
  EXPECT_EQ(parameter(frozen, "2.bias", {3}), bias);
  EXPECT_EQ(parameter(frozen, "2.weight", {3, 5}), parameter(all, "2.weight", {3, 5})) << "the same first step";
  EXPECT_NE(parameter(all, "1.weight", {5, 2}), weight);
  const BareMlp none(context, {2, 3});
  ASSERT_TRUE(ok(lockstep_model_freeze(none, "1", 0)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_initialise(none, 1), {"all parameters are frozen"}));
}

/// Returns the rate of a step; NaN after an error.
double rate_at(const lockstep_schedule& schedule, std::int64_t step) {
  double rate = std::nan("");
  EXPECT_TRUE(ok(lockstep_schedule_rate(&schedule, step, &rate)));
  return rate;
}

TEST(Schedule, GivesTheRatesOfItsFormulas) {
  lockstep_schedule schedule;
  ASSERT_TRUE(ok(lockstep_schedule_init(&schedule, sizeof schedule)));
  schedule.base = 0.5;
  EXPECT_EQ(rate_at(schedule, 0), 0.5);
  EXPECT_EQ(rate_at(schedule, std::int64_t{1} << 40), 0.5);
  schedule.warmup_steps = 4;
  EXPECT_EQ(rate_at(schedule, 0), 0.125);
  EXPECT_EQ(rate_at(schedule, 3), 0.5);
  schedule.kind = LOCKSTEP_SCHEDULE_COSINE;
  schedule.total_steps = 24;
  schedule.end = 0.1;
  EXPECT_EQ(rate_at(schedule, 1), 0.25);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 4), 0.5);
  EXPECT_NEAR(rate_at(schedule, 14), 0.3, 1e-15);
  EXPECT_NEAR(rate_at(schedule, 9), 0.1 + 0.4 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_EQ(rate_at(schedule, 1000), 0.1);
  schedule.kind = LOCKSTEP_SCHEDULE_POLYNOMIAL;
  schedule.power = 3;
  EXPECT_NEAR(rate_at(schedule, 14), 0.1 + 0.4 / 8, 1e-15);
}

TEST(Schedule, BadInput) {
  lockstep_schedule schedule;
  ASSERT_TRUE(ok(lockstep_schedule_init(&schedule, sizeof schedule)));
  double rate = 7;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_schedule_rate(&schedule, 0, &rate), {"base is 0"}));
  schedule.base = 0.1;
  const auto refuses = [&](const char* text, const std::function<void(lockstep_schedule&)>& change,
                           std::int64_t step = 0) {
    lockstep_schedule wrong = schedule;
    change(wrong);
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_schedule_rate(&wrong, step, &rate), {text}));
    EXPECT_EQ(rate, 7);
  };
  const auto cosine = [](lockstep_schedule& s) {
    s.kind = LOCKSTEP_SCHEDULE_COSINE;
    s.total_steps = 10;
  };
  refuses("kind is 3", [](auto& s) { s.kind = 3; });
  refuses("kind is -1", [](auto& s) { s.kind = -1; });
  refuses("base is nan", [](auto& s) { s.base = std::nan(""); });
  refuses("base is -1", [](auto& s) { s.base = -1; });
  refuses("total_steps is 0", [](auto& s) { s.kind = LOCKSTEP_SCHEDULE_COSINE; });
  refuses("warmup_steps is -2", [](auto& s) { s.warmup_steps = -2; });
  refuses("warmup_steps is 11", [&](auto& s) {
    cosine(s);
    s.warmup_steps = 11;
  });
  refuses("end is -0.5", [&](auto& s) {
    cosine(s);
    s.end = -0.5;
  });
  refuses("power is 0", [&](auto& s) {
    cosine(s);
    s.power = 0;
  });
  refuses(
      "step is -1", [](auto&) {}, -1);
  refuses("struct_size is 8", [](auto& s) { s.struct_size = 8; });
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_schedule_rate(nullptr, 0, &rate), {"schedule is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_schedule_rate(&schedule, 0, nullptr), {"rate is NULL"}));
}

TEST_F(TrainingTest, GradientsAreClippedByValue) {
  PlainLine plain = line_of(model);
  lockstep_trainer_options options = descent(1);
  options.clip_value = 0.25;
  create(options);
  ASSERT_TRUE(ok(add(trainer, {100}, {-100})));  // both gradients are far above the limit and positive
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.5)));
  EXPECT_NEAR(line_of(model).w, plain.w - 0.125, 1e-12);
  EXPECT_NEAR(line_of(model).b, plain.b - 0.125, 1e-12);
  // A program compiled before `clip_value` existed passes a shorter struct. Its gradients must not be clipped.
  const Mlp other(context, {1, 1});
  options.struct_size = offsetof(lockstep_trainer_options, clip_value);
  const NewTrainer older(other, comm, options);
  ASSERT_TRUE(ok(add(older, {100}, {-100})));
  ASSERT_TRUE(ok(lockstep_trainer_update(older, 1e-3)));
  plain.step({100}, {-100}, 1e-3);
  EXPECT_NEAR(line_of(other).w, plain.w, 1e-9);
  const Mlp third(context, {1, 1});
  Trainer refused;
  options = descent(1);
  options.clip_value = -1;
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(third, comm, &options, &refused), {"clip_value is -1"}));
  options.clip_value = 1;
  options.optimizer = LOCKSTEP_OPTIMIZER_LARS;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(third, comm, &options, &refused),
                    {"clip_value is 1 with LOCKSTEP_OPTIMIZER_LARS"}));
}

TEST_F(TrainingTest, BatchNormsOfOneNameHaveOneSetOfStatistics) {
  const NewModel norms(context, LOCKSTEP_F64, {1});
  const lockstep_layer_options share = layer_options([](auto& o) {
    o.share = 1;
    o.momentum = 0.5;
  });
  std::int32_t node = 0;
  add_layer(norms, "batch_norm", "bn", node);
  add_layer(norms, "batch_norm", "bn", node, 0, &share);
  ASSERT_TRUE(ok(lockstep_model_initialise(norms, 1)));
  const std::string path = temporary("one_name");
  EXPECT_TRUE(ok(lockstep_model_save(norms, path.c_str(), 0)));
  EXPECT_TRUE(ok(lockstep_model_load(norms, path.c_str(), 0)));
  std::filesystem::remove(path);
}

TEST_F(TrainingTest, BadInput) {
  Trainer none;
  const auto refuses = [&](const char* text, const std::function<void(lockstep_trainer_options&)>& change) {
    const PlainLine before = line_of(model);
    lockstep_trainer_options options = trainer_options(4);
    change(options);
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, comm, &options, &none),
                      {"lockstep_trainer_create", text}));
    EXPECT_EQ(static_cast<lockstep_trainer>(none), nullptr);
    EXPECT_EQ(line_of(model).w, before.w);
  };
  refuses("max_batch is 0", [](auto& o) { o.max_batch = 0; });
  refuses("optimizer is 9", [](auto& o) { o.optimizer = 9; });
  refuses("loss is -1", [](auto& o) { o.loss = -1; });
  refuses("nesterov is 2", [](auto& o) { o.nesterov = 2; });
  // This error is found only after the trainer has taken the model's memory. The model must stay unchanged.
  refuses("betas", [](auto& o) { o.beta1 = 2; });
  refuses("weights is 3", [](auto& o) { o.weights = 3; });
  refuses("struct_size is 3", [](auto& o) { o.struct_size = 3; });
  refuses("weight_decay is nan, expected a number of at least 0", [](auto& o) { o.weight_decay = kNan; });
  refuses("huber_delta is 0, expected a positive", [](auto& o) {
    o.loss = LOCKSTEP_LOSS_HUBER;
    o.huber_delta = 0;
  });
  EXPECT_TRUE(is(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, comm, nullptr, &none)));
  lockstep_trainer_options options = trainer_options(2);
  options.check_input = 1;
  create(options);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_create(model, comm, &options, &none), {"a trainer already"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_model_initialise(model, 3), {"has a trainer"}));
  const PlainLine before = line_of(model);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add(trainer, {1, kNan}, {1, 1}), {"in: element (1, 0) is nan"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add(trainer, {1}, {HUGE_VAL}), {"target: element (0, 0) is inf"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add(trainer, {1, 2, 3}, {1, 2, 3}), {"3 samples", "at most 2"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, add(trainer, {1, 2}, {1}), {"2 samples", "1 in"}));
  double one = 1;
  View view(&one, {1, 1});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add(trainer, view, view, &view), {"weight is given"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_update(trainer, 0.1), {"nothing was added"}));
  ASSERT_TRUE(ok(add(trainer, {1}, {1})));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_update(trainer, kNan), {"learning_rate is nan"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_update(trainer, -1), {"learning_rate is -1"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_broadcast(trainer, 1), {"root is 1"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_loss(trainer, 2, nullptr, nullptr), {"wait is 2"}));
  EXPECT_EQ(line_of(model).w, before.w);
}

TEST(Ranks, OfTheHostTrainTogether) {
  for (const int ranks : {1, 2, 3}) {
    Team team(ranks);
    std::vector<PlainLine> ends(static_cast<std::size_t>(ranks), PlainLine{});
    PlainLine plain{};
    team.run([&](Team::Member& me) {
      {
        const Rank of_team(me);
        const lockstep_comm comm = of_team.comm;
        std::int32_t rank = -1, size = -1, largest = -1;
        ASSERT_TRUE(ok(lockstep_comm_rank(comm, &rank, &size)));
        EXPECT_EQ(rank, me.rank);
        EXPECT_EQ(size, ranks);
        ASSERT_TRUE(ok(lockstep_comm_agree(comm, 10 * (rank == ranks - 1) - rank, &largest)));
        EXPECT_EQ(largest, 11 - ranks);
        const Mlp model(of_team.context, {1, 1}, LOCKSTEP_F64, static_cast<std::uint64_t>(rank + 1));
        ASSERT_TRUE(ok(lockstep_model_broadcast(model, comm, ranks - 1)));
        const NewTrainer trainer(model, comm, descent(rank + 1));  // the largest batch differs between the ranks
        if (rank == ranks - 1) {
          plain = line_of(model);
        }
        for (int step = 0; step < 10; ++step) {
          // Rank r has r samples, so rank 0 has none. The last rank has one additional sample.
          std::vector<double> x(static_cast<std::size_t>(rank)), y(x.size());
          for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = draw(static_cast<std::uint64_t>(10 * rank + step) + i);
            y[i] = 2 * x[i] + 1;
          }
          if (rank == ranks - 1) {
            x.push_back(1);
            y.push_back(4);
          }
          ASSERT_TRUE(ok(add(trainer, x, y)));
          ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.05)));
        }
        ends[static_cast<std::size_t>(rank)] = line_of(model);
        EXPECT_EQ(me.destroyed, 0);
      }
      EXPECT_EQ(me.destroyed, 1);
    });
    for (int step = 0; step < 10; ++step) {
      std::vector<double> x, y;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int i = 0; i < rank; ++i) {
          x.push_back(draw(static_cast<std::uint64_t>(10 * rank + step + i)));
          y.push_back(2 * x.back() + 1);
        }
      }
      x.push_back(1);
      y.push_back(4);
      plain.step(x, y, 0.05);
    }
    for (const PlainLine& end : ends) {
      EXPECT_NEAR(end.w, plain.w, 1e-12);
      EXPECT_NEAR(end.b, plain.b, 1e-12);
      EXPECT_EQ(end.w, ends[0].w);
      EXPECT_EQ(end.b, ends[0].b);
    }
  }
}

// Errors on rank 1 alone: rank 1 gets its own status, and all other ranks get PEER. No rank waits, and all can
// continue.
TEST(Ranks, ThatFailAloneAreAgreedUpon) {
  as_ranks(3, [&](Team::Member& me, const Rank& rank) {
    const lockstep_comm comm = rank.comm;
    const bool odd = me.rank == 1;
    const Mlp model(rank.context, {1, 1});
    const PlainLine before = line_of(model);
    Trainer trainer;
    lockstep_trainer_options options = descent(2);
    const auto all = [&](lockstep_status here, lockstep_status status, const char* text) {
      if (odd) {
        EXPECT_TRUE(fails(here, status, {text}));
      } else {
        EXPECT_TRUE(fails(LOCKSTEP_ERR_PEER, status, {"agreed: rank 1", lockstep_status_name(here), text}));
      }
    };
    options.loss = odd ? 77 : LOCKSTEP_LOSS_MSE;
    all(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, comm, &options, &trainer), "loss is 77");
    options.loss = LOCKSTEP_LOSS_MSE;
    options.epsilon = odd ? -1 : 1e-8;
    options.optimizer = odd ? LOCKSTEP_OPTIMIZER_ADAM : LOCKSTEP_OPTIMIZER_SGD;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, comm, &options, &trainer), {"optimizer"}));
    EXPECT_EQ(static_cast<lockstep_trainer>(trainer), nullptr);
    options = descent(2);
    all(LOCKSTEP_ERR_INVALID,
        lockstep_trainer_create(odd ? nullptr : static_cast<lockstep_model>(model), comm, &options, &trainer),
        "the model is NULL");
    ASSERT_TRUE(ok(lockstep_trainer_create(model, comm, &options, &trainer)));
    if (!odd) {
      ASSERT_TRUE(ok(add(trainer, {1}, {2})));
    }
    all(LOCKSTEP_ERR_STATE, lockstep_trainer_update(trainer, 0.1), "nothing was added");
    if (odd) {
      ASSERT_TRUE(ok(add(trainer, {1}, {2})));
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_update(trainer, odd ? 0.1 : 0.2),
                      {"learning_rate differs between rank 0 and rank 1"}));
    all(LOCKSTEP_ERR_INVALID, lockstep_trainer_update(trainer, odd ? -1 : 0.1), "learning_rate is -1");
    EXPECT_EQ(line_of(model).w, before.w);
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));  // the batch added before is still there
    EXPECT_NE(line_of(model).w, before.w);
    all(LOCKSTEP_ERR_INVALID, lockstep_trainer_broadcast(trainer, odd ? 3 : 0), "root is 3");
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_broadcast(trainer, odd ? 1 : 0), {"root differs"}));
    const std::string folder = temporary("ranks");
    all(LOCKSTEP_ERR_INVALID, lockstep_trainer_save(trainer, odd ? nullptr : folder.c_str(), 0), "folder is NULL");
    ASSERT_TRUE(ok(lockstep_trainer_save(trainer, folder.c_str(), 0)));
    const PlainLine saved = line_of(model);
    const double seven = 7;
    ASSERT_TRUE(ok(write(model, "1.bias", View(&seven, {1}))));
    all(LOCKSTEP_ERR_IO, lockstep_trainer_load(trainer, odd ? "/nowhere/state" : folder.c_str(), 0), "/nowhere/state");
    EXPECT_EQ(line_of(model).b, 7);  // no rank has loaded the folder
    ASSERT_TRUE(ok(lockstep_trainer_load(trainer, folder.c_str(), 0)));
    EXPECT_EQ(line_of(model).b, saved.b);
    EXPECT_EQ(lockstep_comm_agree(comm, 0, nullptr), LOCKSTEP_ERR_INVALID);  // fails on each rank without communication
    ASSERT_TRUE(ok(lockstep_trainer_average(trainer)));
    if (me.rank == 0) {
      std::filesystem::remove_all(folder);
    }
  });
}

TEST(Ranks, WhoseFunctionsFailSayWhich) {
  for (const auto& [number, status] :
       {std::pair{99, LOCKSTEP_ERR_PEER}, std::pair{LOCKSTEP_ERR_MPI, LOCKSTEP_ERR_MPI},
        std::pair{LOCKSTEP_ERR_NCCL, LOCKSTEP_ERR_NCCL}, std::pair{LOCKSTEP_ERR_CUDA, LOCKSTEP_ERR_CUDA}}) {
    as_ranks(2, [&, number = number, status = status](Team::Member& me, const Rank& rank) {
      me.fail_at = me.calls;
      me.failure = number;
      std::int32_t largest = 0;
      EXPECT_TRUE(fails(status, lockstep_comm_agree(rank.comm, 1, &largest),
                        {"all_gather returned " + std::to_string(number), "a cable was pulled"}));
      EXPECT_TRUE(ok(lockstep_comm_agree(rank.comm, 1, &largest)));
    });
  }
}

TEST(Ranks, ThatWereToldOtherThingsAreFoundOut) {
  Team team(2);
  team.run([&](Team::Member& me) {
    const HostContext context;
    lockstep_comm_ops ops = Team::functions(me);
    ops.rank = 0;  // both ranks claim to be rank 0
    Comm comm;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_ops(context, &ops, &comm), {"place 1", "0 of 2"}));
    ops = Team::functions(me);
    EXPECT_TRUE(
        fails(me.rank == 1 ? LOCKSTEP_ERR_INVALID : LOCKSTEP_ERR_PEER,
              lockstep_comm_from_ops(me.rank == 1 ? nullptr : static_cast<lockstep_context>(context), &ops, &comm),
              {"the context is NULL"}));
    EXPECT_EQ(me.destroyed, 0);
    ops.rank = 2;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_ops(context, &ops, &comm), {"rank 2 of 2"}));
    ops.rank = 0;
    ops.barrier = nullptr;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_ops(context, &ops, &comm), {"barrier is missing"}));
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_ops(context, nullptr, &comm), {"ops is NULL"}));
  });
}

}  // namespace
}  // namespace host

// Tests the state that training ranks share: running statistics, parameters, layers, and the order of calls. Also tests
// how inference and files use this state. Ranks are threads here; mpi_test.cpp uses processes.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>

#include "team.hpp"

namespace host {
namespace {

/// A model of one feature: y = linear(batch norm(x)).
struct NormModel : NewModel {
  explicit NormModel(lockstep_context context) : NewModel(context, LOCKSTEP_F64, {1}) {
    std::int32_t node = 0;
    add_layer(*this, "batch_norm", "bn", node);
    add_layer(*this, "linear", "out", node, 1);
    EXPECT_TRUE(ok(lockstep_model_initialise(*this, 1)));
  }
};

/// Computes the running statistics of batches with one feature, by the rule of layer batch_norm.
struct Running {
  double mean = 0;
  double variance = 1;
  void see(const std::vector<double>& x) {
    double sum = 0, squares = 0;
    for (const double each : x) {
      sum += each;
    }
    const auto n = static_cast<double>(x.size());
    for (const double each : x) {
      squares += (each - sum / n) * (each - sum / n);
    }
    mean = 0.9 * mean + 0.1 * sum / n;
    variance = 0.9 * variance + 0.1 * squares / (n - 1);
  }
  /// Returns the expected output of a NormModel in inference.
  [[nodiscard]] double of(lockstep_model model, double x) const {
    const double normed = (x - mean) / std::sqrt(variance + 1e-5) * parameter(model, "bn.weight", {1})[0] +
                          parameter(model, "bn.bias", {1})[0];
    return normed * parameter(model, "out.weight", {1, 1})[0] + parameter(model, "out.bias", {1})[0];
  }
};

lockstep_status infer(lockstep_model model, double x, double& y) {
  y = kNan;
  return infer(model, View(&x, {1, 1}), View(&y, {1, 1}));
}
double inferred(lockstep_model model, double x) {
  double y = kNan;
  EXPECT_TRUE(ok(infer(model, x, y)));
  return y;
}

void step(lockstep_trainer trainer, const std::vector<double>& x, const std::vector<double>& y) {
  ASSERT_TRUE(ok(add(trainer, x, y)));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
}

TEST(RunningStatistics, OfOneRankAreThoseOfTheLastUpdate) {
  const HostContext context;
  const SelfComm comm(context);
  const NormModel model(context);
  const NewTrainer trainer(model, comm, descent(3));
  Running running;
  for (int i = 0; i < 5; ++i) {
    const std::vector<double> x{100.0 + i, 103, 99};
    ASSERT_TRUE(ok(add(trainer, x, {1, 0, 2})));
    EXPECT_NEAR(inferred(model, 101), running.of(model, 101), 1e-9) << "before update " << i;
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
    running.see(x);
    EXPECT_NEAR(inferred(model, 101), running.of(model, 101), 1e-9) << "after update " << i;
  }
  const double now = inferred(model, 101);
  const std::string file = temporary("norm");
  ASSERT_TRUE(ok(lockstep_model_save(model, file.c_str(), 0)));
  const NormModel other(context);
  ASSERT_TRUE(ok(lockstep_model_load(other, file.c_str(), 0)));
  EXPECT_EQ(inferred(other, 101), now);
  std::filesystem::remove(file);
  const std::string folder = temporary("norm_state");
  ASSERT_TRUE(ok(lockstep_trainer_save(trainer, folder.c_str(), 0)));
  EXPECT_EQ(inferred(model, 101), now) << "a checkpoint changes nothing";
  std::filesystem::remove_all(folder);
}

TEST(RunningStatistics, OfSeveralRanksWantAnAverage) {
  const std::string file = temporary("stale");
  const std::string folder = temporary("stale_state");
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const NormModel model(rank.context);
    const NewTrainer trainer(model, rank.comm, descent(2));
    const std::vector<std::vector<double>> batches{{3, 5}, {-1, 8}};
    std::vector<Running> own(2);
    double y = 0;
    lockstep_tape_options options;
    ASSERT_TRUE(ok(lockstep_tape_options_init(&options, sizeof options)));
    options.max_batch = 1;
    options.pass = LOCKSTEP_PASS_INFER;
    options.parameter_gradients = 0;
    Owned<lockstep_tape, lockstep_tape_destroy> tape;
    ASSERT_TRUE(ok(lockstep_tape_create(model, &options, &tape)));
    const auto on_tape = [&] {
      const double x = 2;
      View in(&x, {1, 1}), out(&y, {1, 1});
      std::int64_t pass = 0;
      static_cast<void>(lockstep_tape_release(tape, -1));
      return lockstep_tape_forward(tape, &in, &out, &pass, nullptr);
    };
    const auto train = [&] {
      step(trainer, batches[static_cast<std::size_t>(me.rank)], {1, 2});
      own[0].see(batches[0]);
      own[1].see(batches[1]);
      EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, infer(model, 2, y), {"lockstep_infer", "lockstep_trainer_average"}));
      EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, on_tape(), {"lockstep_tape_forward", "lockstep_trainer_average"}));
      const std::string mine = file + std::to_string(me.rank);
      EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_model_save(model, mine.c_str(), 0), {"lockstep_trainer_average"}));
      EXPECT_TRUE(fails(me.rank == 0 ? LOCKSTEP_ERR_STATE : LOCKSTEP_ERR_PEER,
                        lockstep_model_broadcast(model, rank.comm, 0), {"lockstep_trainer_average"}));
    };
    const auto mean = [&] { return Running{(own[0].mean + own[1].mean) / 2, (own[0].variance + own[1].variance) / 2}; };
    EXPECT_TRUE(ok(infer(model, 2, y)));
    train();
    ASSERT_TRUE(ok(lockstep_trainer_average(trainer)));
    EXPECT_NEAR(inferred(model, 2), mean().of(model, 2), 1e-12);
    ASSERT_TRUE(ok(on_tape()));
    EXPECT_EQ(y, inferred(model, 2));
    train();
    ASSERT_TRUE(ok(lockstep_trainer_save(trainer, folder.c_str(), 0)));
    EXPECT_NEAR(inferred(model, 2), mean().of(model, 2), 1e-12);
    train();
    ASSERT_TRUE(ok(lockstep_trainer_load(trainer, folder.c_str(), 0)));
    own = {Running{}, Running{}};
    for (int i = 0; i < 2; ++i) {
      own[0].see(batches[0]);
      own[1].see(batches[1]);
    }
    EXPECT_NEAR(inferred(model, 2), mean().of(model, 2), 1e-12);
    train();
    ASSERT_TRUE(ok(lockstep_trainer_broadcast(trainer, 1)));
    EXPECT_NEAR(inferred(model, 2), own[1].of(model, 2), 1e-12);
  });
  std::filesystem::remove_all(folder);
}

// Batch norm synchronised over three ranks must give the same results as one rank with the whole batch.
TEST(RunningStatistics, OfSynchronisedBatchNormsAreTheSameOnAllRanks) {
  const std::vector<double> x{1, 4, -2, 0.5, 7}, y{1, 0, 2, -1, 3};
  const HostContext alone;
  const SelfComm self(alone);
  const NormModel whole(alone);
  lockstep_trainer_options options = descent(5);
  options.sync_batch_norm = 1;
  const NewTrainer one(whole, self, options);
  for (int i = 0; i < 4; ++i) {
    step(one, x, y);
  }
  for (const std::int32_t sync : {1, 0}) {
    options.sync_batch_norm = sync;
    std::vector<double> results(3, kNan);
    as_ranks(3, [&](Team::Member& me, const Rank& rank) {  // three ranks, of which rank 0 has no samples
      const NormModel model(rank.context);
      const NewTrainer trainer(model, rank.comm, options);
      const std::ptrdiff_t begin = me.rank == 2 ? 2 : 0, end = me.rank == 0 ? 0 : me.rank == 1 ? 2 : 5;
      if (sync == 1) {  // an error on one rank alone must reach all ranks before the statistics are exchanged
        const lockstep_status status =
            add(trainer, {1}, me.rank == 1 ? std::vector<double>{1, 2} : std::vector<double>{1});
        EXPECT_TRUE(
            fails(me.rank == 1 ? LOCKSTEP_ERR_SHAPE : LOCKSTEP_ERR_PEER, status, {"1 samples", "2 in targets"}));
      }
      for (int i = 0; i < 4; ++i) {
        step(trainer, {x.begin() + begin, x.begin() + end}, {y.begin() + begin, y.begin() + end});
      }
      if (sync == 0) {
        ASSERT_TRUE(ok(lockstep_trainer_average(trainer)));
      }
      results[static_cast<std::size_t>(me.rank)] = inferred(model, 2);
    });
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
    if (sync == 1) {
      EXPECT_NEAR(results[0], inferred(whole, 2), 1e-12);
    } else {
      EXPECT_GT(std::abs(results[0] - inferred(whole, 2)), 1e-3) << "the control";
    }
  }
}

TEST(RunningStatistics, AreLeftAloneByABatchThatIsNotFinite) {
  const HostContext context;
  const SelfComm comm(context);
  const NormModel model(context);
  lockstep_trainer_options options = descent(3);
  options.skip_non_finite = 1;
  const NewTrainer trainer(model, comm, options);
  Running running;
  step(trainer, {1, 4, 2}, {1, 0, 2});
  running.see({1, 4, 2});
  const double before = inferred(model, 2);
  EXPECT_NEAR(before, running.of(model, 2), 1e-12);
  for (const double bad : {kNan, HUGE_VAL}) {
    step(trainer, {1, bad, 2}, {1, 0, 2});
    EXPECT_EQ(inferred(model, 2), before) << bad;
    EXPECT_FALSE(std::isfinite(report_of(trainer).gradient_norm)) << bad;
  }
  EXPECT_EQ(report_of(trainer).step, 3);
  EXPECT_EQ(report_of(trainer).skipped, 2);
  // The variance overflows but the gradients are finite: the statistics must not change.
  step(trainer, {1, 1e200, 2}, {1, 0, 2});
  EXPECT_NEAR(inferred(model, 2), running.of(model, 2), 1e-12);
  step(trainer, {1, 4, 2}, {1, 0, 2});
  running.see({1, 4, 2});
  EXPECT_NEAR(inferred(model, 2), running.of(model, 2), 1e-12);
  EXPECT_TRUE(std::isfinite(report_of(trainer).gradient_norm));
  EXPECT_EQ(report_of(trainer).skipped, 2);
}

// The report of a step must contain the loss and gradient norm over the samples of all ranks. The loop computes the
// expected values.
TEST(Ranks, ReportTheStepOfAll) {
  for (const double clip : {0.0, 0.01}) {
    as_ranks(3, [&](Team::Member& me, const Rank& rank) {
      const Mlp model(rank.context, {1, 1});
      lockstep_trainer_options options = descent(2);
      options.clip_norm = clip;
      const NewTrainer trainer(model, rank.comm, options);
      lockstep_report report = report_of(trainer);
      EXPECT_EQ(report.step, 0);
      EXPECT_EQ(report.samples, 0);
      EXPECT_TRUE(std::isnan(report.loss));
      EXPECT_TRUE(std::isnan(report.gradient_norm));
      const std::vector<std::vector<double>> x{{}, {2, -1}, {0.5}}, y{{}, {1, 1}, {3}};
      const auto here = static_cast<std::size_t>(me.rank);
      for (int i = 1; i <= 3; ++i) {
        const double w = parameter(model, "1.weight", {1, 1})[0], b = parameter(model, "1.bias", {1})[0];
        double loss = 0, dw = 0, db = 0;
        for (std::size_t r = 0; r < 3; ++r) {
          for (std::size_t k = 0; k < x[r].size(); ++k) {
            const double error = w * x[r][k] + b - y[r][k];
            loss += error * error / 3;
            dw += 2 * error * x[r][k] / 3;
            db += 2 * error / 3;
          }
        }
        step(trainer, x[here], y[here]);
        report = report_of(trainer);
        EXPECT_EQ(report.step, i);
        EXPECT_EQ(report.skipped, 0);
        EXPECT_EQ(report.samples, 3);
        EXPECT_NEAR(report.loss, loss, 1e-12);
        EXPECT_NEAR(report.gradient_norm, std::sqrt(dw * dw + db * db), 1e-12);
      }
      lockstep_report small{};
      small.struct_size = me.rank == 1 ? 8 : sizeof small;
      EXPECT_TRUE(fails(me.rank == 1 ? LOCKSTEP_ERR_INVALID : LOCKSTEP_ERR_PEER,
                        lockstep_trainer_report(trainer, &small), {"report: size is 8"}));
      ASSERT_TRUE(ok(add(trainer, x[here], y[here])));
      EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_report(trainer, &report),
                        {"expected an update or a reduce before"}));
      // After abandon(), the report has no gradient norm, because the new gradients have overwritten those of the last
      // update.
      ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
      report = report_of(trainer);
      EXPECT_EQ(report.step, 3);
      EXPECT_TRUE(std::isfinite(report.loss));
      EXPECT_TRUE(std::isnan(report.gradient_norm));
    });
  }
}

// A step in which no rank has samples is no error, and must not change the parameters.
TEST(Ranks, WithoutAnySampleChangeNothing) {
  for (const std::int32_t weights : {LOCKSTEP_WEIGHTS_NONE, LOCKSTEP_WEIGHTS_SAMPLE}) {
    as_ranks(2, [&](Team::Member&, const Rank& rank) {
      const Mlp model(rank.context, {1, 1});
      // Adam's momentum would change the parameters even with zero gradients, so this test detects an update without
      // samples.
      lockstep_trainer_options options = trainer_options(2);
      options.weight_decay = 0.5;
      options.weights = weights;
      const NewTrainer trainer(model, rank.comm, options);
      const auto with = [&](std::int64_t n, double each = 1) {
        double x[] = {1, 2}, y[] = {3, 4}, w[] = {each, each};
        View weight(w, {n});
        const lockstep_view* weighs = weights == LOCKSTEP_WEIGHTS_NONE ? nullptr : weight.get();
        EXPECT_TRUE(ok(add(trainer, View(x, {n, 1}), View(y, {n, 1}), weighs)));
        EXPECT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
      };
      with(2);
      const double before = parameter(model, "1.weight", {1, 1})[0];
      for (int i = 0; i < 4; ++i) {
        const bool weightless = weights == LOCKSTEP_WEIGHTS_SAMPLE && i > 1;
        std::feclearexcept(FE_ALL_EXCEPT);
        with(weightless ? 2 : 0, 0);
        const lockstep_report report = report_of(trainer);
        EXPECT_EQ(report.samples, 0);
        EXPECT_TRUE(std::isnan(report.loss));
        EXPECT_TRUE(std::isnan(report.gradient_norm));
        double loss = 0;
        std::int64_t number = 0;
        ASSERT_TRUE(ok(lockstep_trainer_loss(trainer, 1, &loss, &number)));
        EXPECT_EQ(number, i + 2);
        EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO), 0) << "nothing is divided by no sample";
        EXPECT_TRUE(std::isnan(loss));
      }
      EXPECT_EQ(parameter(model, "1.weight", {1, 1})[0], before);
      with(2);
      EXPECT_NE(parameter(model, "1.weight", {1, 1})[0], before);
    });
  }
}

TEST(Ranks, ThatBeginDifferentAreRefused) {
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const Mlp model(rank.context, {2, 3, 1}, LOCKSTEP_F64, static_cast<std::uint64_t>(me.rank + 1));
    const std::vector<double> own = parameter(model, "1.weight", {3, 2});
    const lockstep_trainer_options options = descent(1);
    Trainer trainer;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, rank.comm, &options, &trainer),
                      {"lockstep_model_broadcast", "parameters", "rank 1"}));
    EXPECT_EQ(static_cast<lockstep_trainer>(trainer), nullptr);
    EXPECT_EQ(parameter(model, "1.weight", {3, 2}), own);
    EXPECT_TRUE(fails(me.rank == 1 ? LOCKSTEP_ERR_INVALID : LOCKSTEP_ERR_PEER,
                      lockstep_model_broadcast(model, rank.comm, me.rank == 1 ? 2 : 0), {"root is 2"}));
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_broadcast(model, rank.comm, me.rank), {"root differs"}));
    ASSERT_TRUE(ok(lockstep_model_broadcast(model, rank.comm, 1)));
    if (me.rank == 1) {
      EXPECT_EQ(parameter(model, "1.weight", {3, 2}), own);
    }
    ASSERT_TRUE(ok(lockstep_trainer_create(model, rank.comm, &options, &trainer)));
    EXPECT_TRUE(ok(lockstep_trainer_check(trainer)));
    if (me.rank == 1) {
      const double value = 7;
      ASSERT_TRUE(ok(write(model, "2.bias", View(&value, {1}))));
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_check(trainer),
                      {"lockstep_trainer_check", "'2.bias' of rank(s) 1"}));
    ASSERT_TRUE(ok(lockstep_trainer_broadcast(trainer, 0)));
    EXPECT_TRUE(ok(lockstep_trainer_check(trainer)));
  });
}

// Makes each exchange of lockstep_trainer_create() fail in turn. The error text must name the failed exchange, and must
// not claim that the ranks differ.
TEST(Ranks, AnExchangeThatBreaksIsNoDifferenceOfRanks) {
  int calls = 0;
  for (int fail_at = -1; fail_at < calls; ++fail_at) {
    int ended = 0;
    as_ranks(2, [&](Team::Member& me, const Rank& rank) {
      const Mlp model(rank.context, {2, 3, 1});
      const lockstep_trainer_options options = descent(1);
      Trainer trainer;
      me.calls = 0;
      me.fail_at = fail_at;
      const lockstep_status status = lockstep_trainer_create(model, rank.comm, &options, &trainer);
      if (me.rank == 0) {
        ended = me.calls;
      }
      if (fail_at < 0) {
        EXPECT_TRUE(ok(status));
        return;
      }
      EXPECT_TRUE(fails(LOCKSTEP_ERR_PEER, status, {"a cable was pulled"})) << fail_at;
      EXPECT_EQ(std::string(lockstep_last_error()).find("begins with other values"), std::string::npos)
          << "exchange " << fail_at << ": " << lockstep_last_error();
    });
    calls = fail_at < 0 ? ended : calls;
  }
  EXPECT_GT(calls, 3);
}

// All ranks have the same parameters, but only one rank has trained, so the running statistics differ. Creating a
// trainer must fail.
TEST(Ranks, WithOtherRunningStatisticsAreRefused) {
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const NormModel model(rank.context);
    const lockstep_trainer_options options = descent(2);
    Trainer trainer;
    if (me.rank == 1) {
      const SelfComm self(rank.context);
      const NewTrainer alone(model, self, options);
      ASSERT_TRUE(ok(add(alone, {3, 5}, {1, 2})));
      ASSERT_TRUE(ok(lockstep_trainer_update(alone, 0)));
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, rank.comm, &options, &trainer),
                      {"lockstep_model_broadcast", "statistics", "rank 1"}));
    ASSERT_TRUE(ok(lockstep_model_broadcast(model, rank.comm, 1)));
    EXPECT_TRUE(ok(lockstep_trainer_create(model, rank.comm, &options, &trainer)));
  });
}

// The layers have parameters of the same shapes, but compute different functions. Creating a trainer must fail.
TEST(Ranks, WhoseLayersDifferAreRefused) {
  struct Net {
    std::int32_t activation = LOCKSTEP_ACTIVATION_TANH;
    std::int32_t stride = 1;
    std::int32_t pad = 0;
    bool residual = false;
    void add_to(lockstep_model model) const {
      std::int32_t node = 0;
      const lockstep_layer_options conv = layer_options([this](auto& o) {
        o.stride[0] = stride;
        o.pad[0] = pad;
      });
      const lockstep_layer_options active = layer_options([this](auto& o) { o.activation = activation; });
      add_layer(model, "conv1d", "c", node, 4, &conv);
      add_layer(model, "activation", "f", node, 0, &active);
      add_layer(model, "global_average_pool", "g", node);
      const std::int32_t nodes[] = {node, node};
      ASSERT_TRUE(ok(lockstep_model_add(model, "linear", 0, "l", 0, nodes, residual ? 2 : 1, 4, nullptr, nullptr)));
      ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
    }
  };
  const std::pair<Net, const char*> others[] = {{Net{}, nullptr},
                                                {Net{.activation = LOCKSTEP_ACTIVATION_RELU}, "relu"},
                                                {Net{.stride = 2}, "stride 2"},
                                                {Net{.pad = 1}, "pad 1"},
                                                {Net{.residual = true}, "linear of g, g"}};
  for (const auto& [net, text] : others) {
    as_ranks(2, [&, &other = net, said = text](Team::Member& me, const Rank& rank) {
      const NewModel model(rank.context, LOCKSTEP_F64, {9, 4});
      (me.rank == 1 ? other : Net{}).add_to(model);
      const lockstep_trainer_options options = descent(1);
      Trainer trainer;
      const lockstep_status made = lockstep_trainer_create(model, rank.comm, &options, &trainer);
      if (said == nullptr) {
        EXPECT_TRUE(ok(made));
      } else {
        EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, made, {"rank 1", said}));
        EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_broadcast(model, rank.comm, 0), {"rank 1", said}));
      }
    });
  }
}

// One rank has trained alone, and broadcasts its model. The other ranks must then infer with these parameters and
// statistics, and all ranks must be able to continue training.
TEST(Ranks, ThatDoNotTrainGetAModel) {
  std::vector<double> results(3, kNan);
  as_ranks(3, [&](Team::Member& me, const Rank& rank) {
    const NormModel model(rank.context);
    if (me.rank == 2) {
      const SelfComm self(rank.context);
      const NewTrainer trainer(model, self, descent(2));
      step(trainer, {40, 50}, {1, 2});
      ASSERT_TRUE(ok(lockstep_model_broadcast(model, rank.comm, 2)));
    } else {
      ASSERT_TRUE(ok(lockstep_model_broadcast(model, rank.comm, 2)));
    }
    results[static_cast<std::size_t>(me.rank)] = inferred(model, 44);
    const NewTrainer trainer(model, rank.comm, descent(2));
    step(trainer, {40, 50}, {1, 2});
    ASSERT_TRUE(ok(lockstep_trainer_average(trainer)));
    Running running;
    running.see({40, 50});
    EXPECT_GT(std::abs(inferred(model, 44) - running.of(model, 44)), 1e-3);
    running.see({40, 50});
    EXPECT_NEAR(inferred(model, 44), running.of(model, 44), 1e-9);
  });
  EXPECT_TRUE(std::isfinite(results[0]));
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(Ranks, ThatCallInAnotherOrderAreToldSo) {
  const std::string folder = temporary("order");
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const Mlp model(rank.context, {1, 1});
    const NewTrainer trainer(model, rank.comm, descent(1));
    ASSERT_TRUE(ok(add(trainer, {1}, {1})));
    const std::pair<std::string, std::function<lockstep_status()>> calls[] = {
        {"lockstep_trainer_update", [&] { return lockstep_trainer_update(trainer, 0.0); }},
        {"lockstep_trainer_broadcast", [&] { return lockstep_trainer_broadcast(trainer, 0); }},
        {"lockstep_trainer_average", [&] { return lockstep_trainer_average(trainer); }},
        {"lockstep_trainer_save", [&] { return lockstep_trainer_save(trainer, folder.c_str(), 0); }},
        {"lockstep_trainer_check", [&] { return lockstep_trainer_check(trainer); }},
        {"lockstep_model_broadcast", [&] { return lockstep_model_broadcast(model, rank.comm, 0); }},
        {"lockstep_comm_agree", [&] {
           std::int32_t largest = 0;
           return lockstep_comm_agree(rank.comm, 0, &largest);
         }}};
    for (const auto& [first, one] : calls) {
      for (const auto& [second, other] : calls) {
        if (first != second) {
          EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, me.rank == 0 ? one() : other(),
                            {"rank 0 calls " + first, "rank 1 " + second, "the same calls in the same order"}));
        }
      }
    }
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));  // all ranks can continue
    const std::string other = folder + (me.rank == 1 ? "b" : "");
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_save(trainer, other.c_str(), 0), {"folder differs"}));
    EXPECT_FALSE(std::filesystem::exists(other));
  });
}

// The allocator blocks one thread inside a call. Calls of a second thread on the same context must return an error.
TEST(Threads, ThatUseAContextAtOnceAreToldSo) {
  struct Host {
    std::atomic<bool> waits{false};
    std::atomic<int> inside{0};
  } host;
  lockstep_allocator functions{};
  functions.struct_size = sizeof functions;
  functions.user = &host;
  functions.allocate = [](void* user, std::size_t bytes, std::size_t alignment, lockstep_stream) {
    auto& h = *static_cast<Host*>(user);
    ++h.inside;
    while (h.waits) {
      std::this_thread::yield();
    }
    return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  };
  functions.deallocate = [](void*, void* memory, std::size_t, lockstep_stream) { std::free(memory); };
  const HostContext context(&functions);
  const NormModel model(context);
  host.inside = 0;
  host.waits = true;
  std::thread first([&] { EXPECT_TRUE(std::isfinite(inferred(model, 2))); });
  while (host.inside == 0) {
    std::this_thread::yield();
  }
  double y = 0;
  View view(&y, {1});
  std::vector<std::pair<lockstep_status, std::string>> found;
  std::atomic<int> ended{0};
  const auto note = [&](lockstep_status status) {
    found.emplace_back(status, lockstep_last_error());
    ++ended;
  };
  std::thread second([&] {  // a thread of its own, because without the check it would also block in the allocator
    note(infer(model, 2, y));
    note(lockstep_model_prepare(model, 3));
    note(lockstep_parameter_read(model, "out.bias", 0, &view));
    note(lockstep_context_synchronize(context));
  });
  for (int i = 0; i < 2000 && host.inside < 2 && ended < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  host.waits = false;
  first.join();
  second.join();
  for (const auto& [status, text] : found) {
    EXPECT_EQ(status, LOCKSTEP_ERR_STATE) << text;
    EXPECT_NE(text.find("used by another thread"), std::string::npos) << text;
  }
  EXPECT_TRUE(std::isfinite(inferred(model, 2)));
}

TEST(Inference, ThatGrowsByOneIsPlannedRarely) {
  const HostContext context;
  const Mlp model(context, {1, 4, 1});
  std::vector<double> x(400), y(400);
  std::int64_t before = -1;
  int plans = 0;
  for (std::int64_t n = 1; n <= 400; ++n) {
    ASSERT_TRUE(ok(infer(model, View(x.data(), {n, 1}), View(y.data(), {n, 1}))));
    std::int64_t in_use = 0, peak = 0;
    ASSERT_TRUE(ok(lockstep_context_memory(context, &in_use, &peak)));
    plans += in_use != before ? 1 : 0;
    before = in_use;
  }
  EXPECT_GT(plans, 1);
  EXPECT_LE(plans, 7);
}

}  // namespace
}  // namespace host

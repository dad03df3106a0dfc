// Tests flat vectors of parameters and gradients. Also tests the two halves of an update, lockstep_trainer_reduce() and
// lockstep_trainer_apply(). Uses one rank, and several ranks that are threads.
#include "team.hpp"

namespace host {
namespace {

std::int64_t size_of(lockstep_model model, std::int32_t statistics = LOCKSTEP_WITHOUT_STATISTICS) {
  std::int64_t n = -1;
  EXPECT_TRUE(ok(lockstep_parameters_size(model, statistics, &n)));
  return n;
}

std::vector<double> values_of(lockstep_model model, std::int32_t statistics = LOCKSTEP_WITHOUT_STATISTICS) {
  std::vector<double> values(static_cast<std::size_t>(size_of(model, statistics)), kNan);
  View view(values.data(), {static_cast<std::int64_t>(values.size())});
  EXPECT_TRUE(ok(lockstep_parameters_read(model, statistics, &view)));
  return values;
}

lockstep_status write_values(lockstep_model model, std::vector<double> values,
                             std::int32_t statistics = LOCKSTEP_WITHOUT_STATISTICS) {
  View view(values.data(), {static_cast<std::int64_t>(values.size())});
  return lockstep_parameters_write(model, statistics, &view);
}

std::vector<double> gradients_of(lockstep_trainer trainer, std::size_t n) {
  std::vector<double> values(n, kNan);
  View view(values.data(), {static_cast<std::int64_t>(n)});
  EXPECT_TRUE(ok(lockstep_gradients_read(trainer, &view)));
  return values;
}

lockstep_status write_gradients(lockstep_trainer trainer, std::vector<double> values) {
  View view(values.data(), {static_cast<std::int64_t>(values.size())});
  return lockstep_gradients_write(trainer, &view);
}

/// A model whose parameters are stored padded and permuted: a convolution, a batch norm and a linear layer.
struct ConvModel : NewModel {
  explicit ConvModel(lockstep_context context, std::uint64_t seed = 1) : NewModel(context, LOCKSTEP_F32, {5, 4, 3}) {
    std::int32_t node = 0;
    add_layer(*this, "conv2d", "conv", node, 7);
    add_layer(*this, "batch_norm", "bn", node);
    add_layer(*this, "linear", "out", node, 2);
    EXPECT_TRUE(ok(lockstep_model_initialise(*this, seed)));
  }
};

/// Adds `n` samples with targets. Equal values of `from` give equal samples.
void add_images(lockstep_trainer trainer, std::int64_t n, std::uint64_t from) {
  std::vector<float> x = drawn<float>(static_cast<std::size_t>(n * 60), from);
  std::vector<float> y = drawn<float>(static_cast<std::size_t>(n * 2), from + 7000);
  ASSERT_TRUE(ok(add(trainer, View(x.data(), {n, 5, 4, 3}), View(y.data(), {n, 2}))));
}

TEST(Vectors, HoldTheParametersInOrderAndThenTheStatistics) {
  const HostContext context;
  const SelfComm comm(context);
  const ConvModel model(context);
  const NewTrainer trainer(model, comm, descent(4));
  add_images(trainer, 4, 1);
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  const std::vector<double> all = values_of(model, LOCKSTEP_WITH_STATISTICS);
  const auto parameters = static_cast<std::size_t>(size_of(model));
  ASSERT_EQ(all.size(), parameters + 2 * 7);
  std::int32_t count = 0;
  ASSERT_TRUE(ok(lockstep_parameter_count(model, &count)));
  std::size_t next = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    lockstep_parameter info{};
    info.struct_size = sizeof info;
    ASSERT_TRUE(ok(lockstep_parameter_info(model, i, &info)));
    for (const double value : parameter(model, info.name, {info.shape, info.shape + info.ndim})) {
      ASSERT_EQ(all[next], value) << info.name << ", element " << next;
      ++next;
    }
  }
  EXPECT_EQ(next, parameters);
  EXPECT_NE(all[next], 0) << "a running mean has moved";
  EXPECT_NE(all[next + 7], 1) << "a running variance has moved";
  // A read into an f32 vector with a stride must write only every third element. Writing this vector to another model
  // must make the two models equal.
  std::vector<float> sparse(3 * all.size(), -1);
  const auto n = static_cast<std::int64_t>(all.size());
  View strided(sparse.data(), {n}, nullptr, {3});
  ASSERT_TRUE(ok(lockstep_parameters_read(model, LOCKSTEP_WITH_STATISTICS, &strided)));
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    ASSERT_EQ(sparse[i], i % 3 == 0 ? static_cast<float>(all[i / 3]) : -1.0F) << i;
  }
  const ConvModel other(context, 99);
  ASSERT_TRUE(ok(lockstep_parameters_write(other, LOCKSTEP_WITH_STATISTICS, &strided)));
  EXPECT_EQ(values_of(other, LOCKSTEP_WITH_STATISTICS), all);
  std::vector<float> x = drawn<float>(60), first(2), second(2);
  ASSERT_TRUE(ok(infer(model, View(x.data(), {1, 5, 4, 3}), View(first.data(), {1, 2}))));
  ASSERT_TRUE(ok(infer(other, View(x.data(), {1, 5, 4, 3}), View(second.data(), {1, 2}))));
  EXPECT_EQ(first, second);
  // A write without LOCKSTEP_WITH_STATISTICS must not change the running statistics.
  ASSERT_TRUE(ok(write_values(other, std::vector<double>(parameters, 0.5))));
  const std::vector<double> changed = values_of(other, LOCKSTEP_WITH_STATISTICS);
  EXPECT_EQ(changed[0], 0.5);
  EXPECT_EQ(changed.back(), all.back());
}

/// Returns options for three different updates: SGD with momentum and weight decay, SGD with a clipped norm, and Adam.
std::vector<lockstep_trainer_options> kinds_of_updates() {
  std::vector<lockstep_trainer_options> all(3, descent(4));
  all[0].momentum = 0.9;
  all[0].weight_decay = 0.01;
  all[1].clip_norm = 0.05;
  all[2] = trainer_options(4);
  return all;
}

TEST(Halves, OfAnUpdateHaveItsBits) {
  for (const int ranks : {1, 3}) {
    for (const lockstep_trainer_options& options : kinds_of_updates()) {
      as_ranks(ranks, [&](Team::Member& me, const Rank& rank) {
        const ConvModel whole(rank.context), halves(rank.context);
        const NewTrainer one(whole, rank.comm, options), two(halves, rank.comm, options);
        const auto n = static_cast<std::size_t>(size_of(whole));
        for (std::uint64_t step = 0; step < 4; ++step) {
          for (const lockstep_trainer trainer : {lockstep_trainer(one), lockstep_trainer(two)}) {
            add_images(trainer, 1 + me.rank, 100 * step + static_cast<std::uint64_t>(me.rank));
            add_images(trainer, 3 - me.rank, 100 * step + 50 + static_cast<std::uint64_t>(me.rank));
          }
          ASSERT_TRUE(ok(lockstep_trainer_update(one, 0.01)));
          double norm = kNan;
          ASSERT_TRUE(ok(lockstep_trainer_reduce(two, step % 2 == 0 ? &norm : nullptr)));
          const lockstep_report before = report_of(two);
          if (step % 2 == 0) {
            double squares = 0;
            for (const double g : gradients_of(two, n)) {
              squares += g * g;
            }
            EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm);
            EXPECT_EQ(norm, before.gradient_norm);
          }
          ASSERT_TRUE(ok(lockstep_trainer_apply(two, 0.01)));
          ASSERT_EQ(values_of(halves), values_of(whole)) << "step " << step << " of " << ranks << " ranks";
          const lockstep_report a = report_of(one), b = report_of(two);
          EXPECT_EQ(b.step, static_cast<std::int64_t>(step) + 1);
          EXPECT_EQ(a.loss, b.loss);
          EXPECT_EQ(before.loss, b.loss) << "a report between the halves";
          EXPECT_EQ(before.step, b.step);
          EXPECT_EQ(before.samples, 4 * ranks);
          EXPECT_EQ(a.gradient_norm, b.gradient_norm);
        }
        ASSERT_TRUE(ok(lockstep_trainer_check(two)));
      });
    }
  }
}

/// Before reduce(), the gradients are those of the weighted sum over this rank's samples. After reduce(), they are
/// those of the weighted mean over all ranks. The loop computes both for the loss (w x + b - y)^2.
TEST(Gradients, AreSumsBeforeAReduceAndMeansAfterIt) {
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const Mlp model(rank.context, {1, 1});
    lockstep_trainer_options options = descent(3);
    options.weights = LOCKSTEP_WEIGHTS_SAMPLE;
    const NewTrainer trainer(model, rank.comm, options);
    const std::vector<double> p = values_of(model);  // order of lockstep_parameter_info()
    lockstep_parameter first{};
    first.struct_size = sizeof first;
    ASSERT_TRUE(ok(lockstep_parameter_info(model, 0, &first)));
    const std::size_t w = std::string(first.name) == "1.weight" ? 0 : 1;
    const std::vector<std::vector<double>> x{{1, 2, -3}, {0.5, 4}}, y{{0, 1, 2}, {-1, 3}}, weight{{1, 3, 0.5}, {2, 1}};
    std::vector<double> own(2), all(2);
    double total = 0;
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < x[r].size(); ++i) {
        const double error = 2 * weight[r][i] * (p[w] * x[r][i] + p[1 - w] - y[r][i]);
        total += weight[r][i];
        for (std::vector<double>* sum : {&own, &all}) {
          if (sum == &all || static_cast<int>(r) == me.rank) {
            (*sum)[w] += error * x[r][i];
            (*sum)[1 - w] += error;
          }
        }
      }
    }
    const auto r = static_cast<std::size_t>(me.rank);
    std::vector<double> in = x[r], target = y[r], weights = weight[r];
    const auto n = static_cast<std::int64_t>(in.size());
    View weight_view(weights.data(), {n});
    ASSERT_TRUE(ok(add(trainer, View(in.data(), {n, 1}), View(target.data(), {n, 1}), &weight_view)));
    const std::vector<double> before = gradients_of(trainer, 2);
    ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
    const std::vector<double> after = gradients_of(trainer, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(before[i], own[i], 1e-12) << i;
      EXPECT_NEAR(after[i], all[i] / total, 1e-12) << i;
    }
    ASSERT_TRUE(ok(lockstep_trainer_apply(trainer, 0.25)));
    const std::vector<double> now = values_of(model);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(now[i], p[i] - 0.25 * all[i] / total, 1e-12) << i;
    }
  });
}

TEST(Gradients, ThatTheHostWritesAreApplied) {
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    lockstep_trainer_options options = descent(2);
    options.weight_decay = 0.125;
    const ConvModel decayed(rank.context), own(rank.context);
    const NewTrainer expected(decayed, rank.comm, options), trainer(own, rank.comm, descent(2));
    const auto n = static_cast<std::size_t>(size_of(own));
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (const lockstep_trainer each : {lockstep_trainer(expected), lockstep_trainer(trainer)}) {
        add_images(each, 2, 10 * step + static_cast<std::uint64_t>(me.rank));
      }
      ASSERT_TRUE(ok(lockstep_trainer_update(expected, 0.1)));
      // The host adds the gradient 0.125 p of a penalty, which must have the same effect as weight decay. In the first
      // two steps, each rank adds it before reduce(). reduce() sums over 2 ranks and divides by 4 samples, so each rank
      // adds 2 * 0.125 p.
      const bool local = step < 2;
      if (!local) {
        ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
      }
      std::vector<double> gradients = gradients_of(trainer, n);
      const std::vector<double> parameters = values_of(own);
      for (std::size_t i = 0; i < n; ++i) {
        gradients[i] += 0.125 * parameters[i] * (local ? 2 : 1);
      }
      ASSERT_TRUE(ok(write_gradients(trainer, gradients)));
      if (local) {
        ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
      } else {
        EXPECT_EQ(gradients_of(trainer, n)[3], static_cast<float>(gradients[3]));
      }
      ASSERT_TRUE(ok(lockstep_trainer_apply(trainer, 0.1)));
      const std::vector<double> a = values_of(decayed), b = values_of(own);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(a[i], b[i], 1e-6) << "step " << step << ", element " << i;
      }
    }
    ASSERT_TRUE(ok(lockstep_trainer_check(trainer)));
  });
}

/// The host program's own optimizer, which reads gradients and writes parameters: gradient descent with the step sizes
/// of Barzilai and Borwein, 1988.
TEST(Vectors, ServeAnOptimizerOfTheHost) {
  as_ranks(3, [&](Team::Member& me, const Rank& rank) {
    const Mlp model(rank.context, {1, 1});
    const NewTrainer trainer(model, rank.comm, trainer_options(4));
    // Rank r has the samples x = r, r + 3, r + 6, r + 9 of y = 3 - x / 2 + noise. The noise is orthogonal to 1 and x,
    // so it does not change the line of least squares.
    const std::vector<double> noise{1, -1, -1, 1, 0, 0, 0, 0, 1, -1, -1, 1};
    std::vector<double> x, y;
    for (int i = me.rank; i < 12; i += 3) {
      x.push_back(i);
      y.push_back(3 - i / 2.0 + noise[static_cast<std::size_t>(i)]);
    }
    std::vector<double> p = values_of(model), g(2), previous_p, previous_g;
    double loss = kNan;
    for (int step = 0; step < 60; ++step) {
      ASSERT_TRUE(ok(add(trainer, x, y)));
      ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
      loss = report_of(trainer).loss;
      g = gradients_of(trainer, 2);
      ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
      double ss = 0, sy = 0;
      for (std::size_t i = 0; step > 0 && i < 2; ++i) {
        ss += (p[i] - previous_p[i]) * (p[i] - previous_p[i]);
        sy += (p[i] - previous_p[i]) * (g[i] - previous_g[i]);
      }
      if (step > 0 && ss == 0) {
        break;
      }
      previous_p = p;
      previous_g = g;
      for (std::size_t i = 0; i < 2; ++i) {
        p[i] -= (step > 0 ? ss / sy : 1e-3) * g[i];
      }
      ASSERT_TRUE(ok(write_values(model, p)));
    }
    EXPECT_NEAR(parameter(model, "1.weight", {1, 1})[0], -0.5, 1e-9);
    EXPECT_NEAR(parameter(model, "1.bias", {1})[0], 3, 1e-8);
    EXPECT_NEAR(loss, 8.0 / 12, 1e-12);
    const lockstep_report report = report_of(trainer);
    EXPECT_EQ(report.step, 0) << "no step was applied";
  });
}

TEST(Vectors, BadInput) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {2, 3});
  const BareMlp bare(context, {2, 3});
  const NewTrainer trainer(model, comm, descent(4));
  std::int64_t n = 0;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_parameters_size(bare, 0, &n), {"no parameters"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameters_size(model, 0, nullptr), {"n is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameters_size(model, 2, &n),
                    {"statistics is 2", "LOCKSTEP_WITHOUT_STATISTICS", "LOCKSTEP_WITH_STATISTICS"}));
  const std::vector<double> before = values_of(model);
  std::vector<double> memory(12, 7);
  const auto all = [&](View view, lockstep_status status, const std::vector<std::string>& parts) {
    EXPECT_TRUE(fails(status, lockstep_parameters_read(model, 0, &view), parts));
    EXPECT_TRUE(fails(status, lockstep_parameters_write(model, 0, &view), parts));
    EXPECT_TRUE(fails(status, lockstep_gradients_read(trainer, &view), parts));
    EXPECT_TRUE(fails(status, lockstep_gradients_write(trainer, &view), parts));
  };
  View good(memory.data(), {9});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_gradients_read(trainer, &good), {"nothing was added"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_gradients_write(trainer, &good), {"nothing was added"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_reduce(trainer, nullptr), {"nothing was added"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_apply(trainer, 0.1), {"lockstep_trainer_reduce before"}));
  std::vector<double> x = drawn(4), y = drawn(6);
  const auto add_two = [&] { return add(trainer, View(x.data(), {2, 2}), View(y.data(), {2, 3})); };
  ASSERT_TRUE(ok(add_two()));
  const std::vector<double> gradients = gradients_of(trainer, 9);
  all(View(memory.data(), {8}), LOCKSTEP_ERR_SHAPE, {"vector is (8)", "expected one axis of 9"});
  all(View(memory.data(), {10}), LOCKSTEP_ERR_SHAPE, {"vector is (10)"});
  all(View(memory.data(), {3, 3}), LOCKSTEP_ERR_SHAPE, {"vector is (3, 3)"});
  all(View(memory.data(), {9}, "n"), LOCKSTEP_ERR_SHAPE, {"values: axes are 'n'", "NULL"});
  all(View(reinterpret_cast<std::int32_t*>(memory.data()), {9}), LOCKSTEP_ERR_DTYPE, {"vector is i32", "f32 or f64"});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameters_read(model, 0, nullptr), {"values is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_gradients_write(trainer, nullptr), {"values is NULL"}));
  View repeated(memory.data(), {9}, nullptr, {0});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_gradients_read(trainer, &repeated), {"an element twice"}));
  EXPECT_EQ(memory, std::vector<double>(12, 7)) << "a refused read writes nothing";
  EXPECT_EQ(values_of(model), before) << "a refused write writes nothing";
  EXPECT_EQ(gradients_of(trainer, 9), gradients);
  ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_STATE, lockstep_trainer_reduce(trainer, nullptr), {"are reduced", "_apply", "_abandon"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_update(trainer, 0.1), {"are reduced"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, add_two(), {"are reduced"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_apply(trainer, kNan), {"learning_rate is nan"}));
  ASSERT_TRUE(ok(lockstep_trainer_apply(trainer, 0.5)));
  for (std::size_t i = 0; i < 9; ++i) {  // the gradient is the mean over two samples
    EXPECT_NEAR(values_of(model)[i], before[i] - 0.5 * gradients[i] / 2, 1e-12);
  }
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_apply(trainer, 0.5), {"not reduced"}));
}

TEST(Halves, OfRanksThatDisagreeAreFoundOut) {
  as_ranks(3, [&](Team::Member& me, const Rank& rank) {
    const Mlp model(rank.context, {1, 1});
    const NewTrainer trainer(model, rank.comm, descent(2));
    const std::vector<double> before = values_of(model);
    ASSERT_TRUE(ok(add(trainer, {1.0 + me.rank}, {2})));
    EXPECT_TRUE(is(LOCKSTEP_ERR_STATE,
                   me.rank == 1 ? lockstep_trainer_update(trainer, 0.1) : lockstep_trainer_reduce(trainer, nullptr)));
    if (me.rank == 2) {
      ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
    }
    EXPECT_TRUE(fails(me.rank == 2 ? LOCKSTEP_ERR_STATE : LOCKSTEP_ERR_PEER, lockstep_trainer_reduce(trainer, nullptr),
                      {"nothing was added"}));
    if (me.rank == 2) {
      ASSERT_TRUE(ok(add(trainer, {3}, {2})));
    }
    ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
    EXPECT_TRUE(
        fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_apply(trainer, me.rank == 0 ? 0.5 : 0.1), {"learning_rate"}));
    EXPECT_EQ(values_of(model), before) << "nothing was changed on any rank";
    ASSERT_TRUE(ok(lockstep_trainer_apply(trainer, 0.1)));
    ASSERT_TRUE(ok(lockstep_trainer_check(trainer)));
  });
}

TEST(Halves, WithoutAnySampleChangeNothing) {
  as_ranks(2, [&](Team::Member&, const Rank& rank) {
    const Mlp model(rank.context, {1, 1});
    const NewTrainer trainer(model, rank.comm, descent(2));
    const std::vector<double> before = values_of(model);
    ASSERT_TRUE(ok(add(trainer, {}, {})));
    ASSERT_TRUE(ok(lockstep_trainer_reduce(trainer, nullptr)));
    EXPECT_EQ(gradients_of(trainer, 2), std::vector<double>(2, 0));
    ASSERT_TRUE(ok(lockstep_trainer_apply(trainer, 0.1)));
    EXPECT_EQ(values_of(model), before);
  });
}

}  // namespace
}  // namespace host

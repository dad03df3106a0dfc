// Tests tapes of the C interface: a solver that calls the net in a loop, several ranks, threads, and bad input.
#include "team.hpp"

namespace host {
namespace {

using Tape = Owned<lockstep_tape, lockstep_tape_destroy>;
using Numbers = std::vector<double>;

lockstep_tape_options tape_options(std::int64_t max_batch, std::int64_t slots) {
  lockstep_tape_options options;
  EXPECT_TRUE(ok(lockstep_tape_options_init(&options, sizeof options)));
  options.max_batch = max_batch;
  options.slots = slots;
  return options;
}

struct NewTape : Tape {
  NewTape(lockstep_model model, const lockstep_tape_options& options) {
    EXPECT_TRUE(ok(lockstep_tape_create(model, &options, operator&())));
  }
};

/// Returns options of a trainer that gets its gradients from tapes, with plain gradient descent.
lockstep_trainer_options given_loss() {
  lockstep_trainer_options options = descent(1);
  options.loss = LOCKSTEP_LOSS_GIVEN;
  return options;
}

View row(Numbers& numbers, std::int64_t samples = 1) {
  return {numbers.data(), {samples, static_cast<std::int64_t>(numbers.size()) / samples}};
}

lockstep_status forward(lockstep_tape tape, Numbers& x, Numbers& y, std::int64_t& pass, std::int64_t samples = 1) {
  View in = row(x, samples), out = row(y, samples);
  return lockstep_tape_forward(tape, &in, &out, &pass, nullptr);
}

lockstep_status backward(lockstep_tape tape, std::int64_t pass, Numbers& dy, Numbers* dx = nullptr,
                         std::int64_t samples = 1) {
  View given = row(dy, samples);
  if (dx == nullptr) {
    return lockstep_tape_backward(tape, pass, &given, nullptr, nullptr);
  }
  View wanted = row(*dx, samples);
  return lockstep_tape_backward(tape, pass, &given, &wanted, nullptr);
}

Numbers values_of(lockstep_model model) {
  std::int64_t n = 0;
  EXPECT_TRUE(ok(lockstep_parameters_size(model, LOCKSTEP_WITHOUT_STATISTICS, &n)));
  Numbers values(static_cast<std::size_t>(n));
  View view(values.data(), {n});
  EXPECT_TRUE(ok(lockstep_parameters_read(model, LOCKSTEP_WITHOUT_STATISTICS, &view)));
  return values;
}

void write_values(lockstep_model model, Numbers values) {
  View view(values.data(), {static_cast<std::int64_t>(values.size())});
  ASSERT_TRUE(ok(lockstep_parameters_write(model, LOCKSTEP_WITHOUT_STATISTICS, &view)));
}

Numbers gradients_of(lockstep_trainer trainer, std::size_t n) {
  Numbers values(n);
  View view(values.data(), {static_cast<std::int64_t>(n)});
  EXPECT_TRUE(ok(lockstep_gradients_read(trainer, &view)));
  return values;
}

/// A solver x(k + 1) = x(k) + h (sin x(k) + net(x(k))) with the loss |x(K) - 1|^2 / 2. The host program computes all
/// derivatives except those of the net.
struct Solver {
  static constexpr std::size_t kSize = 3;
  static constexpr double kStep = 0.2;
  int steps = 4;

  /// Solves from x(0) = `begin`. Stores all x(k), and the number of the tape's pass for each step.
  void run(lockstep_tape tape, const Numbers& begin) {
    states = {begin};
    passes.assign(static_cast<std::size_t>(steps), -1);
    for (std::size_t k = 0; k < passes.size(); ++k) {
      Numbers y(kSize);
      ASSERT_TRUE(ok(forward(tape, states[k], y, passes[k])));
      Numbers next(kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        next[i] = states[k][i] + kStep * (std::sin(states[k][i]) + y[i]);
      }
      states.push_back(next);
    }
  }
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (const double x : states.back()) {
      sum += (x - 1) * (x - 1) / 2;
    }
    return sum;
  }
  /// Runs the adjoint solver, and returns dL/dx(0). The tape adds the gradients of the net's parameters to those of the
  /// trainer.
  Numbers adjoint(lockstep_tape tape) {
    Numbers a(kSize);
    for (std::size_t i = 0; i < kSize; ++i) {
      a[i] = states.back()[i] - 1;
    }
    for (std::size_t k = passes.size(); k-- > 0;) {
      Numbers dy(kSize), dx(kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        dy[i] = kStep * a[i];
      }
      EXPECT_TRUE(ok(backward(tape, passes[k], dy, &dx)));
      for (std::size_t i = 0; i < kSize; ++i) {
        a[i] += kStep * a[i] * std::cos(states[k][i]) + dx[i];
      }
    }
    return a;
  }
  std::vector<Numbers> states{};
  std::vector<std::int64_t> passes{};
};

const std::vector<std::int64_t> kNet{Solver::kSize, 8, Solver::kSize};

TEST(Tape, ASolverHasTheGradientOfDifferences) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, kNet);
  const NewTrainer trainer(model, comm, given_loss());
  for (const std::int32_t recompute : {0, 1}) {
    lockstep_tape_options options = tape_options(1, 20);
    options.recompute = recompute;
    const NewTape tape(model, options);
    for (const int steps : {1, 4, 20}) {
      Solver solver{.steps = steps};
      Numbers x = drawn(Solver::kSize, 5), p = values_of(model);
      solver.run(tape, x);
      const Numbers dx = solver.adjoint(tape);
      const Numbers dp = gradients_of(trainer, p.size());
      ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
      const auto difference = [&](double& number, auto&& apply) {
        const double kept = number, h = 1e-5;
        double side[2];
        for (const int sign : {1, -1}) {
          number = kept + sign * h;
          apply();
          solver.run(tape, x);
          side[sign > 0 ? 0 : 1] = solver.loss();
          EXPECT_TRUE(ok(lockstep_tape_release(tape, -1)));
        }
        number = kept;
        apply();
        return (side[0] - side[1]) / (2 * h);
      };
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(difference(x[i], [] {}), dx[i], 1e-7 * std::max(1.0, std::abs(dx[i])))
            << steps << " steps, x " << i;
      }
      for (std::size_t i = 0; i < p.size(); i += 5) {
        EXPECT_NEAR(difference(p[i], [&] { write_values(model, p); }), dp[i], 1e-7 * std::max(1.0, std::abs(dp[i])))
            << steps << " steps, p " << i;
      }
    }
  }
}

/// Each rank solves from its own initial states. The sum of the gradients must equal that of one rank with all states.
/// A rank without a state adds zero.
TEST(Tape, RanksAddTheirGradients) {
  const HostContext alone;
  const SelfComm self(alone);
  const Mlp whole(alone, kNet);
  const NewTrainer one(whole, self, given_loss());
  const NewTape tape(whole, tape_options(1, 4));
  for (int step = 0; step < 3; ++step) {
    for (std::uint64_t member = 0; member < 3; ++member) {
      Solver solver;
      solver.run(tape, drawn(Solver::kSize, 10 * member));
      static_cast<void>(solver.adjoint(tape));
    }
    ASSERT_TRUE(ok(lockstep_trainer_update(one, 0.05)));
  }
  const Numbers expected = values_of(whole);
  for (const int ranks : {2, 4}) {
    as_ranks(ranks, [&](Team::Member& me, const Rank& rank) {
      const Mlp model(rank.context, kNet);
      const NewTrainer trainer(model, rank.comm, given_loss());
      const NewTape own(model, tape_options(1, 4));
      for (int step = 0; step < 3; ++step) {
        for (int member = me.rank; member < 3; member += ranks) {  // with 4 ranks, the last rank has no initial state
          Solver solver;
          solver.run(own, drawn(Solver::kSize, static_cast<std::uint64_t>(10 * member)));
          static_cast<void>(solver.adjoint(own));
        }
        ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.05)));
        const lockstep_report report = report_of(trainer);
        EXPECT_EQ(report.step, step + 1);
        EXPECT_EQ(report.samples, 0);
        EXPECT_TRUE(std::isnan(report.loss)) << "lockstep does not know the loss";
      }
      ASSERT_TRUE(ok(lockstep_trainer_check(trainer)));
      const Numbers found = values_of(model);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-13) << ranks << " ranks, element " << i;
      }
    });
  }
}

/// Two threads with their own models share the parameters. Each tape keeps its own gradients. After
/// lockstep_trainer_collect() for both tapes, the gradients must equal those of one tape that computes both passes.
TEST(Tape, ThreadsKeepGradientsOfTheirOwn) {
  const HostContext context, other;
  const SelfComm comm(context);
  const Mlp model(context, kNet);
  Model shared;
  ASSERT_TRUE(ok(lockstep_model_share(model, other, &shared)));
  const NewTrainer trainer(model, comm, given_loss());
  lockstep_tape_options options = tape_options(1, 4);
  const NewTape direct(model, options);
  options.own_gradients = 1;
  const NewTape first(model, options), second(shared, options);
  const std::size_t n = values_of(model).size();
  const auto solve = [](lockstep_tape tape, std::uint64_t from) {
    Solver solver;
    solver.run(tape, drawn(Solver::kSize, from));
    static_cast<void>(solver.adjoint(tape));
  };
  solve(direct, 1);
  solve(direct, 2);
  const Numbers expected = gradients_of(trainer, n);
  ASSERT_TRUE(ok(lockstep_trainer_abandon(trainer)));
  std::thread one([&] { solve(first, 1); }), two([&] { solve(second, 2); });
  one.join();
  two.join();
  ASSERT_TRUE(ok(lockstep_trainer_collect(trainer, first)));
  ASSERT_TRUE(ok(lockstep_trainer_collect(trainer, second)));
  const Numbers found = gradients_of(trainer, n);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-14) << i;
  }
  // The second lockstep_trainer_collect() changes nothing, because the first call has set the tape's gradients to zero.
  ASSERT_TRUE(ok(lockstep_trainer_collect(trainer, second)));
  EXPECT_EQ(gradients_of(trainer, n), found);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_collect(trainer, direct), {"expected own_gradients 1"}));
}

TEST(Tape, BadInput) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {2, 3}), stranger(context, {2, 3});
  Tape none;
  lockstep_tape_options options = tape_options(2, 1);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_tape_create(model, &options, &none),
                    {"no trainer of LOCKSTEP_LOSS_GIVEN", "own_gradients 1"}));
  const NewTrainer usual(stranger, comm, descent(2));
  EXPECT_TRUE(is(LOCKSTEP_ERR_STATE, lockstep_tape_create(stranger, &options, &none)));
  const NewTrainer trainer(model, comm, given_loss());
  for (const auto& [change, part] : std::vector<std::pair<std::function<void(lockstep_tape_options&)>, std::string>>{
           {[](auto& o) { o.max_batch = 0; }, "max_batch is 0"},
           {[](auto& o) { o.slots = -1; }, "slots is -1"},
           {[](auto& o) { o.own_gradients = 2; }, "own_gradients is 2"},
           {[](auto& o) { o.recompute = 2; }, "recompute is 2"},
           {[](auto& o) { o.struct_size = 4; }, "struct_size is 4"}}) {
    lockstep_tape_options wrong = options;
    change(wrong);
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_create(model, &wrong, &none), {part}));
  }
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_create(model, nullptr, &none), {"options is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_create(model, &options, nullptr), {"tape is NULL"}));
  const NewTape tape(model, options);
  Numbers x = drawn(4), y(6), dy = drawn(6, 9), few(3), dx(4, 7);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, add(trainer, View(x.data(), {2, 2}), View(y.data(), {2, 3})),
                    {"LOCKSTEP_LOSS_GIVEN", "tape"}));
  std::int64_t pass = -1;
  View in = row(x, 2), out = row(y, 2);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_forward(tape, &in, &out, nullptr, nullptr), {"pass is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_forward(tape, nullptr, &out, &pass, nullptr), {"in is NULL"}));
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, forward(tape, x, few, pass, 1)));
  ASSERT_TRUE(ok(forward(tape, x, y, pass, 2)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, forward(tape, x, y, pass, 2), {"all 1 slots"}));
  const std::int64_t first = pass;
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, backward(tape, first, few, nullptr, 1)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_backward(tape, first, nullptr, nullptr, nullptr), {"NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, backward(tape, first + 1, dy, nullptr, 2), {"has no slot"}));
  View wide(dx.data(), {2, 2}, nullptr, {0, 1});
  View given = row(dy, 2);
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_SHAPE, lockstep_tape_backward(tape, first, &given, &wide, nullptr), {"an element twice"}));
  EXPECT_EQ(dx, Numbers(4, 7));
  const Numbers before = values_of(model);
  ASSERT_TRUE(ok(backward(tape, first, dy, &dx, 2)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, backward(tape, first, dy, nullptr, 2), {"has no slot"}));
  const Numbers gradients = gradients_of(trainer, before.size());
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.5)));
  const Numbers after = values_of(model);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(after[i], before[i] - 0.5 * gradients[i], 1e-15) << "divided by nothing";
  }
  ASSERT_TRUE(ok(forward(tape, x, y, pass, 2)));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.5)));  // without a backward: zero
  EXPECT_EQ(values_of(model), after);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, backward(tape, pass, dy, nullptr, 2), {"were written since pass"}));
  ASSERT_TRUE(ok(lockstep_tape_release(tape, pass)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_release(tape, pass), {"has no slot"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_release(nullptr, 0), {"the tape is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_collect(usual, tape), {"another model"}));
}

TEST(Tape, TrainersOfAGivenLossRefuseWhatTapesDoNotDo) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {2, 3});
  for (const auto& [change, status, part] :
       std::vector<std::tuple<std::function<void(lockstep_trainer_options&)>, lockstep_status, std::string>>{
           {[](auto& o) { o.weights = LOCKSTEP_WEIGHTS_SAMPLE; }, LOCKSTEP_ERR_INVALID, "weights is "},
           {[](auto& o) { o.check_input = 1; }, LOCKSTEP_ERR_INVALID, "check_input is 1"},
           {[](auto& o) { o.sync_batch_norm = 1; }, LOCKSTEP_ERR_UNSUPPORTED, "sync_batch_norm is 1"}}) {
    lockstep_trainer_options options = given_loss();
    change(options);
    Trainer none;
    EXPECT_TRUE(fails(status, lockstep_trainer_create(model, comm, &options, &none), {part, "LOCKSTEP_LOSS_GIVEN"}));
  }
}

/// Solves x(k + 1) = x(k) + h net(x(k)) with constant parameters, as in a variational data assimilation. The adjoint
/// must give the gradient of the misfit with respect to x(0). The tangent must give the derivative in one direction.
TEST(Tape, ConstantParametersGiveTheGradientOfAState) {
  const HostContext context;
  const Mlp model(context, kNet);
  lockstep_tape_options options = tape_options(1, 6);
  options.pass = LOCKSTEP_PASS_INFER;
  options.parameter_gradients = 0;
  options.jvp = 1;
  const NewTape tape(model, options);
  const double h = 0.3;
  Numbers x = drawn(Solver::kSize, 3), t = drawn(Solver::kSize, 8);
  std::vector<std::int64_t> passes(6);
  const auto misfit = [&](Numbers state, bool keep) {
    for (std::int64_t& pass : passes) {
      Numbers y(state.size()), same(state.size());
      EXPECT_TRUE(ok(forward(tape, state, y, pass)));
      View in = row(state), out = row(same);
      EXPECT_TRUE(ok(lockstep_infer(model, &in, &out, nullptr)));
      EXPECT_EQ(y, same) << "the bits of lockstep_infer";
      for (std::size_t i = 0; i < state.size(); ++i) {
        state[i] += h * y[i];
      }
    }
    if (!keep) {
      EXPECT_TRUE(ok(lockstep_tape_release(tape, -1)));
    }
    double sum = 0;
    for (const double each : state) {
      sum += (each - 1) * (each - 1) / 2;
    }
    return std::pair(sum, state);
  };
  const auto [value, last] = misfit(x, true);
  Numbers tangent = t, adjoint(last.size());
  for (std::size_t i = 0; i < last.size(); ++i) {
    adjoint[i] = last[i] - 1;
  }
  for (const std::int64_t pass : passes) {
    Numbers dy(tangent.size());
    View from = row(tangent), to = row(dy);
    ASSERT_TRUE(ok(lockstep_tape_jvp(tape, pass, &from, &to, nullptr)));
    for (std::size_t i = 0; i < dy.size(); ++i) {
      tangent[i] += h * dy[i];
    }
  }
  double along = 0;  // derivative of the misfit in the direction t, by the tangents
  for (std::size_t i = 0; i < last.size(); ++i) {
    along += (last[i] - 1) * tangent[i];
  }
  for (const bool frees : {false, true}) {  // vjp() keeps the slots, backward() frees them
    Numbers a = adjoint;
    for (std::size_t k = passes.size(); k-- > 0;) {
      Numbers dx(a.size());
      View from = row(a), to = row(dx);
      ASSERT_TRUE(ok(frees ? lockstep_tape_backward(tape, passes[k], &from, &to, nullptr)
                           : lockstep_tape_vjp(tape, passes[k], &from, &to, nullptr)));
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] += h * dx[i];
      }
    }
    double product = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      product += a[i] * t[i];
    }
    EXPECT_NEAR(product, along, 1e-13 * std::max(1.0, std::abs(along)));
  }
  const auto at = [&](double step) {
    Numbers moved = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      moved[i] += step * t[i];
    }
    return misfit(moved, false).first;
  };
  EXPECT_NEAR((at(1e-5) - at(-1e-5)) / 2e-5, along, 1e-7 * std::max(1.0, std::abs(along)));
  EXPECT_GT(value, 0);
}

TEST(Tape, ProductsWithTheJacobianBadInput) {
  const HostContext context, second;
  const SelfComm comm(context);
  const Mlp model(context, {2, 3});
  const NewTrainer trainer(model, comm, given_loss());
  Tape none;
  for (const auto& [change, part] : std::vector<std::pair<std::function<void(lockstep_tape_options&)>, std::string>>{
           {[](auto& o) { o.pass = 2; }, "pass is 2"},
           {[](auto& o) { o.parameter_gradients = 3; }, "parameter_gradients is 3"},
           {[](auto& o) { o.vjp = -1; }, "vjp is -1"},
           {[](auto& o) { o.jvp = 2; }, "jvp is 2"},
           {[](auto& o) { o.recompute = o.jvp = 1; }, "recompute is 1 with jvp"},
           {[](auto& o) { o.recompute = o.vjp = 1; }, "recompute is 1 with vjp"},
           {[](auto& o) {
              o.own_gradients = 1;
              o.parameter_gradients = 0;
            },
            "own_gradients is 1 with parameter_gradients 0"}}) {
    lockstep_tape_options wrong = tape_options(2, 1);
    change(wrong);
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_create(model, &wrong, &none), {part}));
  }
  lockstep_tape_options older = tape_options(2, 1);  // options of a program that was compiled before `pass` existed
  older.struct_size = offsetof(lockstep_tape_options, pass);
  older.pass = older.vjp = 77;
  const NewTape plain(model, older);
  lockstep_tape_options options = tape_options(2, 1);
  options.vjp = options.jvp = 1;
  const NewTape tape(model, options);
  Numbers x = drawn(4), y(6), dy = drawn(6, 9), dx(4, 7), few(3);
  View in = row(x, 2), out = row(y, 2), given = row(dy, 2), wanted = row(dx, 2), small = row(few);
  std::int64_t pass = -1, other = -1;
  ASSERT_TRUE(ok(forward(tape, x, y, pass, 2)));
  ASSERT_TRUE(ok(forward(plain, x, y, other, 2)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_tape_vjp(plain, other, &given, &wanted, nullptr), {"vjp"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_tape_jvp(plain, other, &in, &out, nullptr), {"jvp"}));
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, lockstep_tape_vjp(tape, pass, &small, &wanted, nullptr)));
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, lockstep_tape_jvp(tape, pass, &in, &small, nullptr)));
  View one(x.data(), {1, 2});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_tape_jvp(tape, pass, &one, &out, nullptr),
                    {"the tangent of the input has 1 samples, expected 2 as pass"}));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_tape_vjp(tape, pass, &given, nullptr, nullptr), {"in_gradient is NULL"}));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_tape_jvp(tape, pass, nullptr, &out, nullptr), {"in_tangent is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_tape_jvp(tape, pass + 1, &in, &out, nullptr), {"has no slot"}));
  EXPECT_EQ(dx, Numbers(4, 7));
  ASSERT_TRUE(ok(lockstep_tape_vjp(tape, pass, &given, &wanted, nullptr)));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.5)));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_STATE, lockstep_tape_vjp(tape, pass, &given, &wanted, nullptr), {"were written since"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_tape_jvp(tape, pass, &in, &out, nullptr), {"were written since"}));
  options = tape_options(2, 1);
  options.parameter_gradients = 0;
  const NewTape constant(model, options);
  ASSERT_TRUE(ok(forward(constant, x, y, pass, 2)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, backward(constant, pass, dy, nullptr, 2), {"constant parameters"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_collect(trainer, constant), {"parameter_gradients 0"}));
  const NewModel pooled(context, LOCKSTEP_F64, {4, 4, 2});
  std::int32_t node = 0;
  add_layer(pooled, "max_pool", "pool", node);
  add_layer(pooled, "linear", "out", node, 1);
  ASSERT_TRUE(ok(lockstep_model_initialise(pooled, 1)));
  EXPECT_TRUE(is(LOCKSTEP_OK, lockstep_tape_create(pooled, &options, &none)));
  Tape refused;
  options.jvp = 1;
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_UNSUPPORTED, lockstep_tape_create(pooled, &options, &refused), {"layer pool", "max_pool"}));
}

/// A shared model with batch norm is refused, because both models would write to the same running statistics.
TEST(Tape, SharedModelsWithBatchNormAreRefused) {
  const HostContext context, other;
  const NewModel model(context, LOCKSTEP_F64, {3});
  std::int32_t node = 0;
  add_layer(model, "batch_norm", "bn", node);
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
  Model shared;
  ASSERT_TRUE(ok(lockstep_model_share(model, other, &shared)));
  lockstep_tape_options options = tape_options(2, 1);
  options.own_gradients = 1;
  Tape none;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, lockstep_tape_create(shared, &options, &none), {"batch norm"}));
  options.pass = LOCKSTEP_PASS_INFER;  // allowed, because inference only reads the statistics
  const NewTape reader(shared, options);
  const NewTape tape(model, options);
  Numbers x = drawn(6), y(6);
  std::int64_t pass = 0;
  EXPECT_TRUE(ok(forward(tape, x, y, pass, 2)));
  EXPECT_TRUE(ok(forward(reader, x, y, pass, 2)));
}

TEST(Tape, RanksMustFreezeTheSameParameters) {
  as_ranks(2, [&](Team::Member& me, const Rank& rank) {
    const BareMlp model(rank.context, {2, 3, 3});
    if (me.rank == 0) {
      ASSERT_TRUE(ok(lockstep_model_freeze(model, "1", 0)));  // freezing keeps the order of the parameters
    }
    ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
    const lockstep_trainer_options options = given_loss();
    Trainer none;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_create(model, rank.comm, &options, &none), {"frozen "}));
  });
}

TEST(Tape, OutlivesTheHandlesThatItWasMadeFrom) {
  Tape tape;
  {
    const HostContext context;
    const SelfComm comm(context);
    const Mlp model(context, kNet);
    const NewTrainer trainer(model, comm, given_loss());
    const lockstep_tape_options options = tape_options(1, 4);
    ASSERT_TRUE(ok(lockstep_tape_create(model, &options, &tape)));
  }
  Solver solver;
  solver.run(tape, drawn(Solver::kSize, 1));
  static_cast<void>(solver.adjoint(tape));
}

}  // namespace
}  // namespace host

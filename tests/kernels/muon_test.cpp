#include "tests/kernels/muon_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/kernels/arena_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ArenaSegment;
using ops::MuonOptions;

TEST(Muon, DirectionsByHand) {
  // v = 0.25 * 8 = 2, then 2 + 0.25 * (-6 - 2) = 0. Nesterov: 8 + 0.75 * (2 - 8), then -6 + 0.75 * (0 + 6).
  for (const bool nesterov : {false, true}) {
    CpuContext context;
    GuardedTensor p(Shape{1}, DType::f64), g(Shape{1}, DType::f64), v(Shape{1}, DType::f64), d(Shape{1}, DType::f64);
    GuardedTensor rate(Shape{}, DType::f64, constant(0.1));
    p.constant(5);
    v.constant(0);
    const ArenaSegment segment{0, 1, 1, 0.5};
    std::vector<double> directions;
    for (const double gradient : {8.0, -6.0}) {
      g.constant(gradient);
      ops::muon_direction(context, {0.75, nesterov},
                          {.segments = std::span(&segment, 1), .learning_rate = rate, .parameters = p, .gradients = g},
                          v, d);
      directions.push_back(d.values()[0]);
    }
    EXPECT_EQ(directions, nesterov ? (std::vector<double>{3.5, -1.5}) : (std::vector<double>{2, 0}));
    EXPECT_EQ(v.values()[0], 0);
    EXPECT_EQ(p.values()[0], 5) << "parameters have no part in it";
  }
}

TEST(Muon, DirectionsMatchTheDefinition) {
  for (const MuonOptions& options : muon_options()) {
    for (const ArenaParams& p : arena_params_and_clipped()) {
      expect_matches(muon_direction_case(p, options), [&](Inputs in, Outputs expected) {
        arena_oracle(p, in, expected, [&](const ArenaSegment&, double, double g, double&, std::vector<double>& states) {
          states[0] = options.momentum * states[0] + (1 - options.momentum) * g;
          states[1] = options.nesterov ? (1 - options.momentum) * g + options.momentum * states[0] : states[0];
        });
      });
    }
  }
}

TEST(Muon, SkipKeepsTheVelocity) {
  CpuContext context;
  OpCase item = muon_direction_case({101, DType::f32, mixed_segments(101, 3), 0, 0.5, 1}, {});
  item.inputs[1].start = constant(std::nan(""));
  const CheckedRun instance(item, context);
  for (std::size_t output = 0; output < item.outputs.size(); ++output) {
    EXPECT_TRUE(has_same_bits(start_of(item.outputs[output]), instance.output(output))) << output;
  }
}

TEST(Muon, FactorsMatchTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {0, 1, 4, 7}) {
      expect_matches(muon_factor_case(n, dtype), [](Inputs in, Outputs expected) {
        std::vector<double> factors;
        for (const double square : in[0].values()) {
          factors.push_back(square == 0 ? 1024 : std::pow(square, -0.5));
        }
        expected[0].assign(factors);
      });
    }
  }
}

TEST(Muon, PolynomialsByHand) {
  CpuContext context;
  GuardedTensor x(Shape{2, 2, 2}, DType::f64, {1, 2, 3, 4, 0, 0, 0, 1}),
      y(Shape{2, 2, 2}, DType::f64, {1, 0, 0, 0, 2, 0, 5, 0}), z(Shape{2, 2, 2}, DType::f64);
  ops::muon_polynomial(context, {100, 10, 1}, x, y, z);
  EXPECT_EQ(z.values(), (std::vector<double>{111, 20, 30, 140, 102, 0, 5, 110}));
}

TEST(Muon, PolynomialsMatchTheDefinition) {
  const auto oracle = [](Inputs in, Outputs expected) {
    const std::int64_t k = in[0].view().shape[2];
    const std::vector<double> x = in[0].values();
    std::vector<double> z = in.size() > 1 ? in[1].values() : expected[0].values();
    for (std::size_t i = 0; i < z.size(); ++i) {
      const auto e = static_cast<std::int64_t>(i);
      z[i] = 2 * z[i] - 4 * x[i] + (e / k % k == e % k ? 3.5 : 0);
    }
    expected[0].assign(z);
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const auto& [batch, k] : muon_matrices()) {
      for (const bool in_place : {false, true}) {
        expect_matches(muon_polynomial_case(batch, k, dtype, in_place), oracle);
      }
    }
  }
}

TEST(Muon, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(muon_polynomial_case(3, 301, DType::f32));
  expect_same_bits_for_threads(muon_direction_case({100003, DType::f32, mixed_segments(100003, 5)}, {}));
}

TEST(Muon, RefusesWhatTheContractDoesNotAllow) {
  CpuContext context;
  const auto direction = [&](const MuonOptions& options, bool copy) {
    ArenaParams p{8, DType::f32, {{0, 8, 1, 0}}};
    p.copy = copy ? std::optional(DType::bf16) : std::nullopt;
    const CheckedRun instance(muon_direction_case(p, options), context);
  };
  EXPECT_THROW(direction({1, true}, false), UsageError);
  EXPECT_THROW(direction({std::nan(""), true}, false), UsageError);
  EXPECT_THROW(direction({}, true), UsageError);
  GuardedTensor squares(Shape{3}, DType::f64, constant(1)), factors(Shape{3}, DType::f32), few(Shape{2}, DType::f32);
  EXPECT_THROW(ops::muon_factor(context, 0, squares, factors), UsageError);
  EXPECT_THROW(ops::muon_factor(context, std::nan(""), squares, factors), UsageError);
  EXPECT_THROW(ops::muon_factor(context, 1, squares, few), ShapeError);
  EXPECT_THROW(ops::muon_factor(context, 1, factors, factors), DTypeError);
  EXPECT_THROW(ops::muon_factor(context, 1, squares, squares), ShapeError);
  GuardedTensor x(Shape{2, 3, 3}, DType::f32, constant(1)), wide(Shape{2, 3, 4}, DType::f32),
      other(Shape{2, 3, 3}, DType::f64);
  EXPECT_THROW(ops::muon_polynomial(context, {}, wide, wide, wide), ShapeError);
  EXPECT_THROW(ops::muon_polynomial(context, {}, x, x, other), DTypeError);
  EXPECT_THROW(ops::muon_polynomial(context, {std::nan("")}, x, x, x), UsageError);
  GuardedTensor longer(Shape{3, 3, 3}, DType::f32);
  EXPECT_THROW(ops::muon_polynomial(context, {}, longer.view().slice(0, 0, 2), longer.view().slice(0, 0, 2),
                                    longer.view().slice(0, 1, 3)),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::testing

#include "tests/kernels/sgd_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep {
namespace {

using ops::ArenaSegment;
using ops::SgdOptions;
using testing::GuardedTensor;
using testing::OpCase;
using testing::sgd_case;
using testing::SgdParams;

/// One parameter with a constant gradient of 1, starting at p: its values after each of five steps.
std::vector<double> trajectory(double p, const SgdOptions& options, double rate, const ArenaSegment& segment) {
  CpuContext context;
  double gradient = 1;
  double velocity = 0;
  std::vector<double> values;
  for (int step = 0; step < 5; ++step) {
    ops::sgd_update(context, options, std::span(&segment, 1), 0, TensorView(std::span(&rate, 1), Shape{}),
                    TensorView(std::span(&p, 1), Shape{1}), TensorView(std::span(&gradient, 1), Shape{1}),
                    TensorView(std::span(&velocity, 1), Shape{1}));
    values.push_back(p);
  }
  return values;
}

void expect_values(const std::vector<double>& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], 1e-14) << "after step " << i + 1;
  }
}

TEST(Sgd, FiveStepsByHand) {
  expect_values(trajectory(1, {}, 0.1, {0, 1}), {0.9, 0.8, 0.7, 0.6, 0.5});
  // weight decay alone: p' = p - 0.1 (1 + 0.5 p) = 0.95 p - 0.1
  expect_values(trajectory(2, {}, 0.1, {0, 1, 1, 0.5}), {1.8, 1.61, 1.4295, 1.258025, 1.09512375});
  // v = 1, 1.9, 2.71, 3.439, 4.0951
  expect_values(trajectory(1, {0.9, false}, 0.1, {0, 1}), {0.9, 0.71, 0.439, 0.0951, -0.31441});
  // steps 1 + 0.9 v = 1.9, 2.71, 3.439, 4.0951, 4.68559
  expect_values(trajectory(1, {0.9, true}, 0.1, {0, 1}), {0.81, 0.539, 0.1951, -0.21441, -0.682969});
  // g = 1 + 0.5 p = 2, 1.9, 1.755, 1.59475, 1.4348875; v = 2, 2.9, 3.205, 3.19725, 3.0335125
  expect_values(trajectory(2, {0.5, false}, 0.1, {0, 1, 1, 0.5}), {1.8, 1.51, 1.1895, 0.869775, 0.56642375});
  // The scale multiplies the learning rate only.
  expect_values(trajectory(2, {0.5, false}, 0.2, {0, 1, 0.5, 0.5}), {1.8, 1.51, 1.1895, 0.869775, 0.56642375});
  // g = 2, 1.85, 1.68625; v = 2, 2.85, 3.11125; steps g + v / 2 = 3, 3.275, 3.241875
  const auto nesterov = trajectory(2, {0.5, true}, 0.1, {0, 1, 1, 0.5});
  expect_values({nesterov.begin(), nesterov.begin() + 3}, {1.7, 1.3725, 1.0483125});
  expect_values(trajectory(2, {0.5, true}, 0.1, {0, 1, 1, 0.5, false}), {2, 2, 2, 2, 2});
}

/// Element by element, in double, asking every segment.
void oracle(const SgdParams& p, std::span<const GuardedTensor> in, std::span<GuardedTensor> expected) {
  const double rate = in[0].values()[0];
  const std::vector<double> gradients = in[1].values();
  std::vector<double> parameters = expected[0].values();
  std::vector<double> velocity = expected.size() > 1 ? expected[1].values() : std::vector<double>(parameters.size());
  const double mu = p.options.momentum;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t place = p.begin + static_cast<std::int64_t>(i);
    for (const ArenaSegment& s : p.segments) {
      if (place >= s.offset && place < s.offset + s.count && s.trainable) {
        const double g = gradients[i] + s.weight_decay * parameters[i];
        velocity[i] = mu * velocity[i] + g;
        parameters[i] -= rate * s.learning_rate_scale * (p.options.nesterov ? g + mu * velocity[i] : velocity[i]);
        if (mu == 0) {
          velocity[i] = 0;
        }
      }
    }
  }
  expected[0].assign(parameters);
  if (expected.size() > 1) {
    expected[1].assign(velocity);
  }
}

TEST(Sgd, MatchesTheNaiveFormula) {
  CpuContext context({.threads = 2});
  for (const SgdParams& p : testing::sgd_params()) {
    testing::expect_matches(
        sgd_case(p), context,
        [&](std::span<const GuardedTensor> in, std::span<GuardedTensor> expected) { oracle(p, in, expected); });
  }
}

TEST(Sgd, ElementsOutsideTheTrainableSegmentsKeepTheirBits) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kCount = 1000;
  const SgdParams p{kCount, DType::f32, {0.9, true}, testing::mixed_segments(kCount, 17), 0};
  testing::OpInstance instance(sgd_case(p), context);
  instance.run();
  for (std::size_t output = 0; output < 2; ++output) {
    GuardedTensor before(Shape{kCount}, DType::f32);
    before.normal(2 + output);
    const TensorView& after = instance.output(output);
    // the frozen fourth segment and the gap behind it
    EXPECT_TRUE(testing::has_same_bits(before.view().slice(0, 600, 817), after.slice(0, 600, 817)));
    EXPECT_FALSE(testing::has_same_bits(before.view().slice(0, 599, 817), after.slice(0, 599, 817)));
    EXPECT_FALSE(testing::has_same_bits(before.view().slice(0, 600, 818), after.slice(0, 600, 818)));
  }
}

template <class T>
void check_ranges(const SgdOptions& options) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kCount = 50021;
  const auto segments = testing::mixed_segments(kCount, 11);
  double rate = 0.1;
  struct Arena {
    GuardedTensor parameters{Shape{kCount}, dtype_of<T>};
    GuardedTensor gradients{Shape{kCount}, dtype_of<T>};
    GuardedTensor velocity{Shape{kCount}, dtype_of<T>};
    Arena() {
      parameters.normal(1);
      gradients.normal(2);
      velocity.constant(0);
    }
  };
  const auto update = [&](Arena& arena, std::int64_t begin, std::int64_t end) {
    ops::sgd_update(context, options, segments, begin, TensorView(std::span(&rate, 1), Shape{}),
                    arena.parameters.view().slice(0, begin, end), arena.gradients.view().slice(0, begin, end),
                    arena.velocity.view().slice(0, begin, end));
  };
  Arena whole;
  Arena split;
  Arena disturbed;
  T& one = disturbed.gradients.template span<T>()[kCount / 10];
  one *= static_cast<T>(1.0001);
  for (int step = 0; step < 3; ++step) {
    update(whole, 0, kCount);
    update(disturbed, 0, kCount);
    std::int64_t begin = 0;
    for (const std::int64_t end : {1, 2, 33, 10004, 10004, 10013, 29999, 40020, 40021, 50000, 50021}) {
      update(split, begin, end);
      begin = end;
    }
  }
  testing::expect_same_bits(whole.parameters, split.parameters);
  testing::expect_same_bits(whole.velocity, split.velocity);
  EXPECT_FALSE(testing::has_same_bits(whole.parameters, disturbed.parameters));
  EXPECT_TRUE(split.parameters.check().empty() && split.velocity.check().empty());
}

TEST(Sgd, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  for (const SgdOptions& options : {SgdOptions{}, SgdOptions{0.9, false}, SgdOptions{0.9, true}}) {
    check_ranges<float>(options);
    check_ranges<double>(options);
  }
}

TEST(Sgd, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const SgdOptions& options : {SgdOptions{}, SgdOptions{0.9, false}, SgdOptions{0.9, true}}) {
      testing::expect_same_bits_for_threads(sgd_case({50021, dtype, options, testing::mixed_segments(50021, 5), 0}));
    }
  }
}

TEST(Sgd, WithoutMomentumVelocityIsNotTouched) {
  CpuContext context;
  GuardedTensor tensors[3] = {{Shape{5}, DType::f32}, {Shape{5}, DType::f32}, {Shape{5}, DType::f32}};
  tensors[0].normal(1);
  tensors[1].normal(2);
  const GuardedTensor poison(Shape{5}, DType::f32);
  GuardedTensor rate(Shape{1}, DType::f64);
  rate.constant(0.1);
  const ArenaSegment segment{0, 5};
  ops::sgd_update(context, {}, std::span(&segment, 1), 0, rate, tensors[0], tensors[1], tensors[2]);
  testing::expect_same_bits(tensors[2], poison);
  EXPECT_FALSE(std::isnan(tensors[0].values()[0]));
}

TEST(Sgd, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor parameters(Shape{6}, DType::f32);
  const GuardedTensor gradients(Shape{6}, DType::f32);
  const GuardedTensor velocity(Shape{6}, DType::f32);
  struct Arguments {
    TensorView rate, parameters, gradients, velocity;
    SgdOptions options;
    std::vector<ArenaSegment> segments;
    std::int64_t begin = 0;
  };
  const Arguments good{rate, parameters, gradients, velocity, {0.9, true}, {{0, 3}, {3, 3}}};
  const auto call = [&](auto&& change) {
    Arguments a = good;
    change(a);
    ops::sgd_update(context, a.options, a.segments, a.begin, a.rate, a.parameters, a.gradients, a.velocity);
  };
  EXPECT_NO_THROW(call([](Arguments&) {}));
  EXPECT_NO_THROW(call([](Arguments& a) { a.options = {}, a.velocity = {}; }));
  for (TensorView Arguments::*view :
       {&Arguments::rate, &Arguments::parameters, &Arguments::gradients, &Arguments::velocity}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::i32; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2, 3}; }), ShapeError);
  }
  for (TensorView Arguments::*view : {&Arguments::rate, &Arguments::parameters, &Arguments::gradients}) {
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), ShapeError) << "not given";
  }
  for (TensorView Arguments::*view : {&Arguments::parameters, &Arguments::gradients, &Arguments::velocity}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f64; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).strides = Strides{2}; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).data = a.rate.data; }), ShapeError);
  }
  EXPECT_THROW(call([](Arguments& a) { a.gradients.data = a.parameters.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.velocity.data = a.parameters.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.velocity.data = a.gradients.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.begin = -1; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.begin = std::numeric_limits<std::int64_t>::max() - 2; }), ShapeError);
  for (const auto& [offset, count] : {std::pair<std::int64_t, std::int64_t>{2, 3}, {3, -1}, {-1, 1}}) {
    EXPECT_THROW(call([=, o = offset, n = count](Arguments& a) { a.segments[1].offset = o, a.segments[1].count = n; }),
                 ShapeError);
  }
  EXPECT_THROW(call([](Arguments& a) { std::swap(a.segments[0], a.segments[1]); }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.segments[1].count = std::numeric_limits<std::int64_t>::max() - 1; }),
               ShapeError);
  const double nan = std::nan("");
  EXPECT_THROW(call([=](Arguments& a) { a.segments[0].weight_decay = nan; }), UsageError);
  EXPECT_THROW(call([](Arguments& a) { a.segments[0].learning_rate_scale = HUGE_VAL; }), UsageError);
  for (const double momentum : {-0.1, 1.0, nan}) {
    EXPECT_THROW(call([=](Arguments& a) { a.options = {momentum, false}; }), UsageError) << momentum;
  }
  EXPECT_THROW(call([](Arguments& a) { a.options = {0, true}; }), UsageError) << "nesterov without momentum";
  EXPECT_THROW(call([](Arguments& a) { a.velocity = {}; }), UsageError) << "momentum without velocity";
}

}  // namespace
}  // namespace lockstep

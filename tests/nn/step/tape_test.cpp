// Tests tapes: chains of forward passes whose gradients have a closed form, slots, and gradients equal to those of a
// TrainStep. (A slot keeps the activations of one pass whose backward is still to come.) model/gradient_test.cpp
// compares a tape's gradients of every kind of layer with finite differences.

#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/flat_vector.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/tape.hpp>

#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;
using Numbers = std::vector<double>;

TensorView view(Numbers& numbers, std::int64_t samples) {
  return TensorView(std::span<double>(numbers), {samples, std::ssize(numbers) / samples});
}

/// A model with parameters in f64 on a context of one thread.
struct Learned {
  explicit Learned(const Model& made) : model(made), set(context, model, DType::f64) { set.initialise(context, 5); }
  [[nodiscard]] Numbers flat(FlatPart part) {
    Numbers numbers(static_cast<std::size_t>(flat_size(set, part)));
    read_flat(context, set, part, TensorView(std::span<double>(numbers), {std::ssize(numbers)}));
    return numbers;
  }
  CpuContext context{{.threads = 1}};
  Model model;
  ParameterSet set;
};

TapeOptions tape_of(std::int64_t max_batch, std::int64_t slots) {
  return {.max_batch = max_batch, .slots = slots, .plan = {.dtype = DType::f64}};
}

Model linear(std::int64_t n) {
  ModelBuilder b("linear", {n});
  b.linear("a", b.input(), n);
  return b.build();
}

Model net() {
  ModelBuilder b("net", {3});
  b.linear("2", b.linear("1", b.input(), 8, {.activation = ops::Activation::tanh}), 2);
  return b.build();
}

/// The passes compute x(k + 1) = x(k) + h (A x(k) + b), and the loss is L = c x(K). The expected gradients are
/// dL/dx(k) = (1 + h A)^T dL/dx(k + 1), dL/dA = the sum over k of h dL/dx(k + 1) x(k)^T, and dL/db = the sum over k of
/// h dL/dx(k + 1).
TEST(Tape, AChainOfPassesHasTheGradientInClosedForm) {
  constexpr std::size_t n = 4;
  const double h = 0.25;
  for (const std::int64_t steps : {1, 2, 5, 20}) {
    Learned learned(linear(n));
    Tape tape(learned.context, learned.model, learned.set, tape_of(1, steps));
    const Numbers p = learned.flat(FlatPart::values);
    const bool bias_first = learned.set.parameters()[0].spec.name == "a.bias";
    const std::size_t a = bias_first ? n : 0, b = bias_first ? 0 : n * n;
    std::vector<Numbers> x{normal_numbers(n, 1)};
    std::vector<std::int64_t> passes;
    for (std::int64_t k = 0; k < steps; ++k) {
      Numbers y(n);
      passes.push_back(tape.forward(view(x.back(), 1), view(y, 1)));
      Numbers next = x.back();
      for (std::size_t i = 0; i < n; ++i) {
        next[i] += h * y[i];
      }
      x.push_back(next);
    }
    EXPECT_EQ(tape.free_slots(), 0);
    Numbers adjoint = normal_numbers(n, 2), expected = adjoint, sums(p.size());
    for (std::int64_t k = steps; k-- > 0;) {
      Numbers dy(n), dx(n);
      for (std::size_t i = 0; i < n; ++i) {
        dy[i] = h * adjoint[i];
      }
      tape.backward(passes[static_cast<std::size_t>(k)], view(dy, 1), view(dx, 1));
      const Numbers& xk = x[static_cast<std::size_t>(k)];
      Numbers before = expected;
      for (std::size_t j = 0; j < n; ++j) {
        adjoint[j] += dx[j];
        for (std::size_t i = 0; i < n; ++i) {
          expected[j] += h * p[a + i * n + j] * before[i];
          sums[a + i * n + j] += h * before[i] * xk[j];
        }
        sums[b + j] += h * before[j];
      }
    }
    const Numbers gradients = learned.flat(FlatPart::gradients);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(adjoint[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i]))) << steps << " steps";
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(gradients[i], sums[i], 1e-12 * std::max(1.0, std::abs(sums[i]))) << steps << " steps, element " << i;
    }
    EXPECT_EQ(tape.free_slots(), steps);
  }
}

/// The test gives a tape the gradient of the mean squared error. The tape must then compute the gradients of a step
/// with this loss.
TEST(Tape, HasTheGradientsOfAStep) {
  constexpr std::int64_t n = 6;
  Learned learned(net());
  Step step(net(), {.max_batch = n, .seed = 5, .plan = {.dtype = DType::f64, .loss = Loss::mse}});
  Numbers x = normal_numbers(n * 3, 1), t = normal_numbers(n * 2, 2), y(n * 2), dy(n * 2);
  Tape tape(learned.context, learned.model, learned.set, tape_of(n, 1));
  const std::int64_t pass = tape.forward(view(x, n), view(y, n));
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dy[i] = 2 * (y[i] - t[i]) / static_cast<double>(dy.size());
  }
  tape.backward(pass, view(dy, n));
  step.add({{StateField::values, view(x, n)}, {StateField::targets, view(t, n)}});
  step.reduce();
  Numbers expected(static_cast<std::size_t>(flat_size(learned.set, FlatPart::gradients)));
  step.read_gradients(TensorView(std::span<double>(expected), {std::ssize(expected)}));
  const Numbers gradients = learned.flat(FlatPart::gradients);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(gradients[i], expected[i], 1e-14) << i;
  }
}

/// Running backward in another order changes the summed gradients by rounding only, and dL/dx not at all. A pass of
/// fewer samples must have the same bits as on a tape made for that number.
TEST(Tape, PassesEndInAnyOrder) {
  Learned forwards(net()), backwards(net()), small(net());
  Tape first(forwards.context, forwards.model, forwards.set, tape_of(5, 3));
  Tape second(backwards.context, backwards.model, backwards.set, tape_of(5, 3));
  const std::vector<std::int64_t> samples{5, 2, 4};
  std::vector<Numbers> x, dy, dx(3), again(3);
  std::vector<std::int64_t> passes;
  for (std::size_t k = 0; k < 3; ++k) {
    x.push_back(normal_numbers(samples[k] * 3, 10 + k));
    dy.push_back(normal_numbers(samples[k] * 2, 20 + k));
    Numbers y(dy[k].size()), same(y.size());
    passes.push_back(first.forward(view(x[k], samples[k]), view(y, samples[k])));
    EXPECT_EQ(second.forward(view(x[k], samples[k]), view(same, samples[k])), passes[k]);
    EXPECT_EQ(y, same);
    Tape alone(small.context, small.model, small.set, tape_of(samples[k], 1));
    alone.release(alone.forward(view(x[k], samples[k]), view(same, samples[k])));
    EXPECT_EQ(y, same) << samples[k] << " samples";
  }
  for (const std::size_t k : {0U, 1U, 2U}) {
    dx[k].resize(x[k].size());
    first.backward(passes[k], view(dy[k], samples[k]), view(dx[k], samples[k]));
  }
  for (const std::size_t k : {2U, 0U, 1U}) {
    again[k].resize(x[k].size());
    second.backward(passes[k], view(dy[k], samples[k]), view(again[k], samples[k]));
  }
  EXPECT_EQ(dx, again);
  const Numbers a = forwards.flat(FlatPart::gradients), b = backwards.flat(FlatPart::gradients);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 1e-14) << i;
  }
}

TEST(Tape, GradientsOfItsOwnLeaveTheParametersAlone) {
  Learned learned(net());
  const TensorView like = learned.set.gradients();
  const Buffer memory(like.bytes(), learned.context);
  TapeOptions options = tape_of(2, 1);
  options.gradients = TensorView(memory.data(), like.dtype, like.device, like.shape);
  ops::fill(learned.context, 0, options.gradients);
  Tape own(learned.context, learned.model, learned.set, options);
  Tape usual(learned.context, learned.model, learned.set, tape_of(2, 1));
  Numbers x = normal_numbers(6, 1), dy = normal_numbers(4, 2), y(4);
  own.backward(own.forward(view(x, 2), view(y, 2)), view(dy, 2));
  EXPECT_EQ(testing::to_doubles(like), Numbers(static_cast<std::size_t>(like.numel()), 0));
  usual.backward(usual.forward(view(x, 2), view(y, 2)), view(dy, 2));
  EXPECT_EQ(testing::to_doubles(like), testing::to_doubles(options.gradients));
}

TEST(Tape, RecomputationKeepsTheBits) {
  ModelBuilder b("conv", {6, 6, 3});
  const NodeId norm = b.batch_norm("bn", b.conv2d("c1", b.input(), 5, {.kernel = 3, .pad = 1}), {.relu = true});
  b.linear("out", b.conv2d("c2", norm, 4, {.kernel = 3, .pad = 1}), 2);
  const Model model = b.build();
  std::vector<Numbers> results;
  std::vector<std::size_t> bytes;
  for (const Recompute recompute : {Recompute::off, Recompute::cheap, Recompute::blocks}) {
    Learned learned(model);
    TapeOptions options = tape_of(4, 2);
    options.plan.recompute = recompute;
    Tape tape(learned.context, learned.model, learned.set, options);
    Numbers x = normal_numbers(4 * 108, 1), other = normal_numbers(4 * 108, 2), dy = normal_numbers(8, 3), y(8);
    Numbers dx(x.size());
    const TensorView in(std::span<double>(x), {4, 6, 6, 3}), between(std::span<double>(other), {4, 6, 6, 3});
    const std::int64_t first = tape.forward(in, view(y, 4));
    const std::int64_t second = tape.forward(between, view(y, 4));
    tape.backward(first, view(dy, 4), TensorView(std::span<double>(dx), {4, 6, 6, 3}));
    tape.backward(second, view(dy, 4));
    Numbers all = learned.flat(FlatPart::gradients);
    all.insert(all.end(), dx.begin(), dx.end());
    results.push_back(all);
    bytes.push_back(tape.slot_bytes());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_LT(bytes[1], bytes[0]) << "fewer activations are kept";
}

/// A tape in bf16 must agree with a tape in f64 up to rounding, in outputs, gradients and products with the Jacobian.
TEST(Tape, SixteenBitsAreWithinTheirRoundings) {
  ModelBuilder b("net", {6});
  NodeId x = b.linear("1", b.input(), 32, {.activation = ops::Activation::tanh});
  b.linear("3", b.layer_norm("2", x), 5);
  const Model model = b.build();
  const auto numbers_in = [&](DType dtype) {
    CpuContext context{{.threads = 1}};
    ParameterSet set(context, model, dtype);
    set.initialise(context, 5);
    TapeOptions options = tape_of(8, 1);
    options.plan.dtype = dtype;
    options.vjp = options.jvp = true;
    Tape tape(context, model, set, options);
    Numbers in = normal_numbers(48, 1), u = normal_numbers(40, 2), t = normal_numbers(48, 3);
    std::array<Numbers, 4> found{Numbers(40), Numbers(48), Numbers(40)};
    const std::int64_t pass = tape.forward(view(in, 8), view(found[0], 8));
    tape.jvp(pass, view(t, 8), view(found[2], 8));
    tape.backward(pass, view(u, 8), view(found[1], 8));
    found[3].resize(static_cast<std::size_t>(flat_size(set, FlatPart::gradients)));
    read_flat(context, set, FlatPart::gradients, TensorView(std::span<double>(found[3]), {std::ssize(found[3])}));
    return found;
  };
  const auto exact = numbers_in(DType::f64), rounded = numbers_in(DType::bf16);
  for (std::size_t k = 0; k < exact.size(); ++k) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < exact[k].size(); ++i) {
      error += std::pow(exact[k][i] - rounded[k][i], 2);
      size += std::pow(exact[k][i], 2);
    }
    const double relative = std::sqrt(error / size);
    EXPECT_LT(relative, 0.02) << k;
    EXPECT_GT(relative, 1e-4) << k << ": was it computed in bf16?";
  }
}

/// A first pass without samples has no statistics, so the running statistics must not change.
TEST(Tape, APassWithoutSamplesChangesNoStatistics) {
  ModelBuilder b("norm", {3});
  b.batch_norm("bn", b.input());
  Learned learned(b.build());
  Tape tape(learned.context, learned.model, learned.set, tape_of(4, 1));
  const Numbers before = testing::to_doubles(learned.set.buffer_arena());
  Numbers x = normal_numbers(12, 1), y(12);
  tape.release(tape.forward(TensorView(std::span<double>(x).first(0), {0, 3}), TensorView()));
  EXPECT_EQ(testing::to_doubles(learned.set.buffer_arena()), before);
  tape.release(tape.forward(view(x, 4), view(y, 4)));
  EXPECT_NE(testing::to_doubles(learned.set.buffer_arena()), before);
}

/// A tape must ignore PlanOptions::beside, the second context for weight gradients. Its gradients must be complete when
/// the stream of its own context is done.
TEST(Tape, IgnoresASecondContext) {
  std::vector<Numbers> gradients;
  for (const bool given : {false, true}) {
    Learned learned(net());
    Stream worker = Stream::host_worker("weights");
    CpuContext second{{.threads = 1, .stream = &worker}};
    TapeOptions options = tape_of(2, 1);
    options.vjp = true;
    options.plan.beside = given ? &second : nullptr;
    Tape tape(learned.context, learned.model, learned.set, options);
    Numbers x = normal_numbers(6, 1), dy = normal_numbers(4, 2), y(4);
    tape.backward(tape.forward(view(x, 2), view(y, 2)), view(dy, 2));
    gradients.push_back(testing::to_doubles(learned.set.gradients()));
  }
  EXPECT_EQ(gradients[1], gradients[0]);
}

/// An Inference computes the outputs of an inference pass. Options that a tape ignores must not reach this Inference.
TEST(Tape, IgnoresOptionsOfTheLossInEveryPass) {
  ModelBuilder b("conv", {4, 4, 2});
  b.linear("out", b.conv2d("c", b.input(), 3, {.pad = 1}), 2);
  Learned learned(b.build());
  TapeOptions options = tape_of(1, 1);
  options.inference_pass = true;
  options.plan.label_smoothing = 0.1;
  options.plan.top_k = 2;
  options.plan.recompute = Recompute::blocks;
  Tape tape(learned.context, learned.model, learned.set, options);
  Numbers x = normal_numbers(32, 1), y(2), same(2), dy(2, 1), dx(32);
  const TensorView in(std::span<double>(x), {1, 4, 4, 2});
  const std::int64_t pass = tape.forward(in, view(y, 1));
  Inference inference(learned.context, learned.model, learned.set, {.max_batch = 1, .plan = {.dtype = DType::f64}});
  inference.run(in, view(same, 1));
  EXPECT_EQ(y, same);
  tape.backward(pass, view(dy, 1), TensorView(std::span<double>(dx), {1, 4, 4, 2}));
}

TEST(Tape, StreamsDrawDifferently) {
  ModelBuilder b("masked", {64});
  b.dropout("drop", b.linear("1", b.input(), 64), 0.5);
  const Model model = b.build();
  const auto drawn = [&](std::int64_t stream) {
    Learned learned(model);
    TapeOptions options = tape_of(1, 1);
    options.stream = stream;
    Tape tape(learned.context, learned.model, learned.set, options);
    Numbers x = normal_numbers(64, 1), y(64);
    tape.forward(view(x, 1), view(y, 1));
    return y;
  };
  EXPECT_EQ(drawn(0), drawn(0));
  EXPECT_NE(drawn(0), drawn(1));
  Learned learned(model);
  TapeOptions options = tape_of(1, 1);
  options.stream = -1;
  expect_holds(error_of<UsageError>([&] { Tape(learned.context, learned.model, learned.set, options); }),
               {"stream is -1"});
}

TEST(Tape, BadInput) {
  Learned learned(net());
  expect_holds(error_of<UsageError>([&] { Tape(learned.context, learned.model, learned.set, tape_of(0, 1)); }),
               {"max_batch is 0"});
  expect_holds(error_of<UsageError>([&] { Tape(learned.context, learned.model, learned.set, tape_of(1, 0)); }),
               {"slots is 0"});
  expect_holds(error_of<UsageError>([&] { Tape(learned.context, learned.model, learned.set); }),
               {"the parameters are for f64", "expected f32 as in the plan"});
  TapeOptions both = tape_of(1, 1);
  both.vjp = true;
  both.plan.recompute = Recompute::blocks;
  expect_holds(error_of<UsageError>([&] { Tape(learned.context, learned.model, learned.set, both); }),
               {"vjp", "no recompute"});
  Tape tape(learned.context, learned.model, learned.set, tape_of(2, 2));
  Numbers x = normal_numbers(6, 1), y(4), dy = normal_numbers(4, 2), dx(6), more(9);
  const std::int64_t pass = tape.forward(view(x, 2), view(y, 2));
  expect_holds(error_of<UsageError>([&] { tape.forward(view(more, 3), view(y, 2)); }), {"3 samples", "at most 2"});
  expect_holds(error_of<ShapeError>([&] { tape.forward(view(x, 3), view(y, 2)); }), {"the input has 2 features"});
  expect_holds(error_of<ShapeError>([&] { tape.forward(view(x, 2), view(y, 1)); }), {"the output"});
  EXPECT_EQ(tape.free_slots(), 1) << "refused passes take no slot";
  expect_holds(error_of<UsageError>([&] { tape.backward(1, view(dy, 2)); }), {"pass 1 has no slot"});
  expect_holds(error_of<UsageError>([&] { tape.backward(2, view(dy, 2)); }),
               {"pass 2 has no slot", "forward() returned"});
  expect_holds(error_of<UsageError>([&] { tape.release(-2); }), {"pass -2 has no slot"});
  expect_holds(error_of<ShapeError>([&] { tape.backward(pass, view(dy, 4)); }), {"the target has 1 features"});
  expect_holds(error_of<ShapeError>([&] { tape.backward(pass, view(dy, 2), view(x, 3)); }),
               {"the gradient of the input"});
  EXPECT_EQ(testing::to_doubles(learned.set.gradients()),
            Numbers(static_cast<std::size_t>(learned.set.gradients().numel()), 0));
  std::vector<std::int32_t> whole(6);
  const TensorView of_input{std::span(whole), {2, 3}}, integers = of_input.slice(1, 0, 2);
  expect_holds(error_of<DTypeError>([&] { tape.forward(view(x, 2), integers); }), {"the output is i32"});
  expect_holds(error_of<DTypeError>([&] { tape.backward(pass, integers); }), {"the gradient of the output is i32"});
  expect_holds(error_of<DTypeError>([&] { tape.backward(pass, view(dy, 2), of_input); }),
               {"the gradient of the input is i32"});
  TensorView twice = view(dx, 2);
  twice.strides[0] = 0;
  expect_holds(error_of<ShapeError>([&] { tape.backward(pass, view(dy, 2), twice); }), {"stride 0 on axis 0"});
  TensorView elsewhere = view(dx, 2);
  elsewhere.device = Device::cuda(0);
  static_cast<void>(error_of<DeviceError>([&] { tape.backward(pass, view(dy, 2), elsewhere); }));
  EXPECT_EQ(testing::to_doubles(learned.set.gradients()),
            Numbers(static_cast<std::size_t>(learned.set.gradients().numel()), 0))
      << "a refused backward() adds nothing";
  static_cast<void>(tape.forward(view(x, 2), view(y, 2)));
  expect_holds(error_of<StateError>([&] { tape.forward(view(x, 2), view(y, 2)); }), {"all 2 slots are in use"});
  tape.backward(pass, view(dy, 2), view(dx, 2));
  expect_holds(error_of<UsageError>([&] { tape.backward(pass, view(dy, 2)); }), {"pass 0 has no slot"});
  const std::int64_t old = tape.forward(view(x, 2), TensorView());
  EXPECT_EQ(old, 2) << "numbers are not used again";
  learned.set.write(learned.context, "2.bias", TensorView(std::span<double>(y).first(2), {2}));
  expect_holds(error_of<StateError>([&] { tape.backward(old, view(dy, 2)); }), {"were written since pass 2"});
  tape.release(Tape::kAllPasses);
  EXPECT_EQ(tape.free_slots(), 2);
}

}  // namespace
}  // namespace lockstep::nn

// Tests inference: any number of samples, however it is split, must give the results of a plan of exactly that size.
#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/ingest.hpp>

#include "tests/nn/net.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/processor.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

/// A network that Inference computes in one pass if `width` is small enough (ops::Mlp), else by plans.
Model mlp4(std::int64_t width = 32) {
  ModelBuilder b("mlp4", {4});
  NodeId x = b.linear("1", b.input(), width, {.activation = ops::Activation::tanh});
  x = b.linear("2", x, 32, {.activation = ops::Activation::tanh});
  b.linear("3", x, 1);
  return b.build();
}
constexpr std::int64_t kWide = 300;

/// A model with parameters drawn from a seed.
struct Seeded {
  explicit Seeded(Model made = mlp4(), DType dtype = DType::f32, int threads = 0)
      : context({.threads = threads}), model(std::move(made)), set(context, model, dtype) {
    set.initialise(context, 5);
  }
  CpuContext context;
  Model model;
  ParameterSet set;
};

/// Returns the outputs of a plan of exactly n samples: the oracle.
template <class T>
std::vector<T> exactly(const Model& model, const ParameterSet& set, std::vector<double> in, std::int64_t n,
                       const Shape& sample) {
  CpuContext context({.threads = 1});
  PlanOptions options{.dtype = dtype_of<T>};
  Plan plan(context, model, Mode::infer, n, options);
  StepState state(context, n, step_layout(model, options));
  const Buffer workspace(plan.workspace_bytes(), context);
  plan.bind(set, state, workspace);
  state.set(context, {.learning_rate = 0, .sample_weight = 1, .valid = n, .epoch = 0});
  Shape shape{n};
  for (const std::int64_t extent : sample) {
    shape.push_back(extent);
  }
  ingest(context, state, {StateField::values, TensorView(std::span(in), shape)});
  plan.run(context);
  const auto out = plan.output().template span<T>();
  return {out.begin(), out.end()};
}

/// Expects the same bits. If oneDNN's results in f32 depend on the number of samples, expects equality up to rounding.
template <class T>
void expect_same(const std::vector<T>& out, const std::vector<T>& expected, std::int64_t n) {
  if (testing::onednn_rows_are_alike() || std::is_same_v<T, double>) {
    EXPECT_EQ(out, expected) << n;
    return;
  }
  ASSERT_EQ(out.size(), expected.size()) << n;
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out[i], expected[i], 1e-6) << n << ": " << i;
  }
}

template <class T>
void same_bits_for_any_number() {
  Seeded seeded(mlp4(kWide), dtype_of<T>, 1);
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 300, .plan = {.dtype = dtype_of<T>}});
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 31, 33, 50, 64, 65, 100, 129, 257, 299, 300}) {
    std::vector<double> in = normal_numbers(4 * n, static_cast<std::uint64_t>(n));
    std::vector<T> out(static_cast<std::size_t>(n), T{-7});
    inference.run(TensorView(std::span(in), {n, 4}), TensorView(std::span(out), {n, 1}));
    const std::vector<T> expected = exactly<T>(model, set, in, n, {4});
    expect_same(out, expected, n);
  }
}

TEST(Inference, AnyNumberHasTheBitsOfAPlanOfThatSize) {
  same_bits_for_any_number<float>();
  same_bits_for_any_number<double>();
}

TEST(Inference, ImagesWithBatchNormAndOtherAxes) {
  Seeded seeded(cifar_resnet(8, 10, 8, 8).reading(InputKind::values), DType::f64);
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 6, .plan = {.dtype = DType::f64}});
  constexpr std::int64_t kN = 5;
  const std::vector<double> in = normal_numbers(kN * 8 * 8 * 3, 2);
  std::vector<double> chw(in.size());
  for (std::int64_t n = 0; n < kN; ++n) {
    for (std::int64_t p = 0; p < 64; ++p) {
      for (std::int64_t c = 0; c < 3; ++c) {
        chw[static_cast<std::size_t>((n * 3 + c) * 64 + p)] = in[static_cast<std::size_t>((n * 64 + p) * 3 + c)];
      }
    }
  }
  std::vector<double> out(10 * kN);  // shape (classes, n)
  inference.run(TensorView(std::span(chw), {kN, 3, 8, 8}), TensorView(std::span(out), {10, kN}), "nchw", "cn");
  const std::vector<double> expected = exactly<double>(model, set, in, kN, {8, 8, 3});
  for (std::int64_t n = 0; n < kN; ++n) {
    for (std::int64_t c = 0; c < 10; ++c) {
      EXPECT_EQ(out[static_cast<std::size_t>(c * kN + n)], expected[static_cast<std::size_t>(n * 10 + c)]);
    }
  }
}

TEST(Inference, WritesInsideTheOutputOnly) {
  Seeded seeded;
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 40});
  std::vector<double> in = normal_numbers(4 * 11, 3);
  std::vector<float> field(13 * 3, 99.0F);  // the results go to the middle column of rows 1 to 11
  inference.run(TensorView(std::span(in), {11, 4}),
                TensorView(field.data() + 4, DType::f32, Device::cpu(), {11, 1}, {3, 1}));
  for (std::size_t i = 0; i < field.size(); ++i) {
    EXPECT_EQ(field[i] != 99.0F, i % 3 == 1 && i / 3 >= 1 && i / 3 <= 11) << i;
  }
}

TEST(Inference, ManyViewsHaveTheBitsOfEachAlone) {
  Seeded seeded(mlp4(kWide));
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 12});
  const std::vector<std::int64_t> sizes{5, 0, 12, 1, 6, 6, 7, 3};
  std::vector<std::vector<double>> in;
  std::vector<std::vector<float>> out;
  for (const std::int64_t size : sizes) {
    in.push_back(normal_numbers(size * 4, static_cast<std::uint64_t>(size)));
    out.emplace_back(static_cast<std::size_t>(size), 7.0F);
  }
  std::vector<SampleView> from, to;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    from.push_back({TensorView(std::span(in[i]), {sizes[i], 4}), "nc"});
    to.push_back({TensorView(std::span(out[i]), {sizes[i], 1}), ""});
  }
  inference.run(from, to);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<float> none;
    expect_same(out[i], sizes[i] == 0 ? none : exactly<float>(model, set, in[i], sizes[i], {4}), sizes[i]);
  }
  const std::vector<std::vector<float>> before = out;
  in[0][0] += 1;
  from[6].axes = "nq";
  EXPECT_EQ(error_of<ShapeError>([&] { inference.run(from, to); }),
            "view 6 of 8: the input has an axis 'q' (nq), expected an axis of nc as model mlp4 takes them");
  EXPECT_EQ(out, before);
  from.pop_back();
  EXPECT_EQ(error_of<UsageError>([&] { inference.run(from, to); }),
            "inference: 7 inputs and 8 outputs, expected an output for each input");
}

TEST(Inference, ThreadsShareOneSetOfParameters) {
  CpuContext context;
  const Model model = mlp4(kWide);
  ParameterSet writable(context, model, DType::f32);
  writable.initialise(context, 5);
  const ParameterSet& set = writable;
  std::vector<std::vector<float>> results(4, std::vector<float>(100));
  std::vector<std::thread> threads;
  for (std::vector<float>& result : results) {
    threads.emplace_back([&model, &set, &result] {
      CpuContext own({.threads = 1});
      Inference inference(own, model, set, {.max_batch = 100});
      for (std::int64_t round = 0; round < 20; ++round) {
        std::vector<double> in = normal_numbers(400, 1);
        inference.run(TensorView(std::span(in), {100, 4}), TensorView(std::span(result), {100, 1}));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::vector<float> expected = exactly<float>(model, set, normal_numbers(400, 1), 100, {4});
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(result, expected);
  }
}

TEST(Inference, BadInput) {
  Seeded seeded;
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 8});
  std::vector<float> in(9 * 4);
  std::vector<float> out(9, 7.0F);
  const auto run = [&](const Shape& from, const Shape& to) {
    inference.run(TensorView(std::span(in).first(static_cast<std::size_t>(from.numel())), from),
                  TensorView(std::span(out).first(static_cast<std::size_t>(to.numel())), to));
  };
  EXPECT_EQ(error_of<UsageError>([&] {
              run({9, 4}, {9, 1});
            }),
            "the input has 9 samples, expected at most 8 (InferenceOptions::max_batch)");
  EXPECT_EQ(error_of<ShapeError>([&] { run({8, 3}, {8, 1}); }), "the input has 3 features, model mlp4 takes 4");
  EXPECT_EQ(error_of<ShapeError>([&] { run({8, 4}, {7, 1}); }), "the output has room for 7 samples, expected 8");
  EXPECT_EQ(error_of<ShapeError>([&] { run({4, 4}, {4, 2}); }), "the output has 2 features, model mlp4 takes 1");
  EXPECT_EQ(out, std::vector<float>(9, 7.0F));
  EXPECT_NO_THROW(run({0, 4}, {0, 1}));
  EXPECT_THROW(Inference(context, cifar_resnet(8, 10, 8, 8), set), UsageError) << "another model";
  EXPECT_THROW(Inference(context, model, set, {.max_batch = 0}), UsageError);
  EXPECT_THROW(Inference(context, model, set, {.plan = {.dtype = DType::f64}}), UsageError);
}

long double applied(ops::Activation kind, long double x) {
  const auto sigmoid = [](long double v) { return 1 / (1 + std::exp(-v)); };
  switch (kind) {
    case ops::Activation::gelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0L));
    case ops::Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x)));
    case ops::Activation::silu:
      return x * sigmoid(x);
    case ops::Activation::tanh:
      return std::tanh(x);
    case ops::Activation::sigmoid:
      return sigmoid(x);
    case ops::Activation::relu:
      return x <= 0 ? 0 : x;
    case ops::Activation::identity:
      break;
  }
  return x;
}

/// A chain with odd widths: activations in layers and as layers, a dropout, a layer without bias.
Model chain(ops::Activation kind) {
  ModelBuilder b("chain", {3});
  NodeId x = b.linear("1", b.input(), 17, {.activation = kind});
  x = b.dropout("drop", x, 0.5);
  x = b.linear("2", x, 33, {.bias = false});
  x = kind == ops::Activation::relu ? b.relu("act", x) : b.activation("act", x, kind);
  x = b.linear("3", x, 1, {.activation = kind});
  b.linear("4", x, 5);
  return b.build();
}

/// Returns the outputs of chain(kind) for in (n, 3), computed in long double from the parameters.
std::vector<double> chain_oracle(Seeded& seeded, ops::Activation kind, const std::vector<double>& in) {
  std::vector<long double> now(in.begin(), in.end());
  for (const std::string name : {"1", "2", "3", "4"}) {
    const auto read = [&](const std::string& parameter) {
      const auto& info = seeded.set.parameters()[static_cast<std::size_t>(seeded.set.find(parameter))];
      std::vector<double> values(static_cast<std::size_t>(info.spec.dims.numel()));
      seeded.set.read(seeded.context, parameter, TensorView(std::span(values), info.spec.dims));
      return std::pair(values, info.spec.dims);
    };
    const auto [weight, dims] = read(name + ".weight");
    const std::vector<double> bias = name == "2" ? std::vector<double>(33) : read(name + ".bias").first;
    const auto outputs = static_cast<std::size_t>(dims[0]), inputs = static_cast<std::size_t>(dims[1]);
    std::vector<long double> next;
    for (std::size_t s = 0; s < now.size() / inputs; ++s) {
      for (std::size_t o = 0; o < outputs; ++o) {
        long double sum = bias[o];
        for (std::size_t i = 0; i < inputs; ++i) {
          sum += static_cast<long double>(weight[o * inputs + i]) * now[s * inputs + i];
        }
        next.push_back(name == "4" ? sum : applied(kind, sum));
      }
    }
    now = std::move(next);
  }
  return {now.begin(), now.end()};
}

constexpr ops::Activation kKinds[] = {ops::Activation::gelu,    ops::Activation::gelu_tanh, ops::Activation::silu,
                                      ops::Activation::tanh,    ops::Activation::sigmoid,   ops::Activation::relu,
                                      ops::Activation::identity};

template <class T>
void chain_matches_and_keeps_bits(ops::Activation kind) {
  constexpr std::int64_t kMost = 820;  // 1 + .. + 40
  Seeded seeded(chain(kind), dtype_of<T>, 1);
  Inference inference(seeded.context, seeded.model, seeded.set, {.max_batch = kMost, .plan = {.dtype = dtype_of<T>}});
  std::vector<double> in = normal_numbers(3 * kMost, 3);
  std::vector<T> all(5 * kMost);
  inference.run(TensorView(std::span(in), {kMost, 3}), TensorView(std::span(all), {kMost, 5}));
  const std::vector<double> expected = chain_oracle(seeded, kind, in);
  constexpr double kTolerance = std::is_same_v<T, float> ? 3e-6 : 3e-14;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_NEAR(all[i], expected[i], kTolerance) << ops::name_of(kind) << ' ' << i;
  }
  CpuContext three({.threads = 3});
  Inference threads(three, seeded.model, seeded.set, {.max_batch = kMost, .plan = {.dtype = dtype_of<T>}});
  for (std::int64_t n = 1, first = 0; n <= 40; first += n, ++n) {
    for (Inference* each : {&inference, &threads}) {
      std::vector<T> out(static_cast<std::size_t>(5 * n));
      each->run(TensorView(std::span(in).subspan(static_cast<std::size_t>(3 * first), static_cast<std::size_t>(3 * n)),
                           {n, 3}),
                TensorView(std::span(out), {n, 5}));
      EXPECT_TRUE(std::equal(out.begin(), out.end(), all.begin() + 5 * first)) << n << ' ' << ops::name_of(kind);
    }
  }
}

TEST(Inference, ChainsMatchLongDoubleAndASampleKeepsItsBits) {
  for (const ops::Activation kind : kKinds) {
    chain_matches_and_keeps_bits<float>(kind);
    chain_matches_and_keeps_bits<double>(kind);
  }
}

TEST(Inference, ChainsTakeAnyTypesStridesAndSharedMemory) {
  Seeded seeded(chain(ops::Activation::tanh));
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 64});
  std::vector<std::int32_t> whole;
  for (std::int32_t i = 0; i < 3 * 40; ++i) {
    whole.push_back(i * 7 % 11 - 5);
  }
  std::vector<float> in(whole.begin(), whole.end());
  std::vector<float> expected(5 * 40);
  inference.run(TensorView(std::span(in), {40, 3}), TensorView(std::span(expected), {40, 5}));
  std::vector<float> out(5 * 40);
  inference.run(TensorView(std::span(whole), {40, 3}), TensorView(std::span(out), {40, 5}));
  EXPECT_EQ(out, expected) << "integers";
  std::vector<double> wide(5 * 40);  // shape (5, 40)
  inference.run(TensorView(std::span(in), {4, 10, 3}), TensorView(std::span(wide), {5, 40}), "nnc", "cn");
  for (std::size_t s = 0; s < 40; ++s) {
    for (std::size_t o = 0; o < 5; ++o) {
      EXPECT_EQ(wide[o * 40 + s], expected[s * 5 + o]);
    }
  }
  std::vector<BFloat16> rounded(5 * 40);
  inference.run(TensorView(std::span(in), {40, 3}), TensorView(std::span(rounded), {40, 5}));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(static_cast<float>(rounded[i]), static_cast<float>(BFloat16(expected[i])));
  }
  std::vector<float> memory(5 * 40);  // the inputs are at the end, and the outputs overwrite them
  std::copy(in.begin(), in.end(), memory.end() - 3 * 40);
  inference.run(TensorView(std::span(memory).last(3 * 40), {40, 3}), TensorView(std::span(memory), {40, 5}));
  EXPECT_EQ(memory, expected) << "shared memory";
  const SampleView from[] = {{TensorView(std::span(in).first(3 * 30), {30, 3}), ""},
                             {TensorView(std::span(in).first(0), {0, 3}), ""},
                             {TensorView(std::span(in).last(3 * 10), {10, 3}), "nc"}};
  std::fill(out.begin(), out.end(), 0.0F);
  const SampleView to[] = {{TensorView(std::span(out).first(5 * 30), {30, 5}), ""},
                           {TensorView(std::span(out).first(0), {0, 5}), ""},
                           {TensorView(std::span(out).last(5 * 10), {10, 5}), ""}};
  inference.run(from, to);
  EXPECT_EQ(out, expected) << "many views";
}

// Inference keeps packed copies of the parameters. After a change of the parameters, run() must use the new values.
TEST(Inference, ChainsComputeWithThePresentParameters) {
  Seeded seeded(chain(ops::Activation::silu), DType::f64);
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 4, .plan = {.dtype = DType::f64}});
  std::vector<double> in = normal_numbers(12, 4);
  std::vector<double> out(20);
  const auto run = [&] {
    inference.run(TensorView(std::span(in), {4, 3}), TensorView(std::span(out), {4, 5}));
    const std::vector<double> expected = chain_oracle(seeded, ops::Activation::silu, in);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_NEAR(out[i], expected[i], 3e-14);
    }
  };
  run();
  std::vector<double> bias{1, 2, 3, 4, 5};
  set.write(context, "4.bias", TensorView(std::span(bias), {5}));
  run();
  set.initialise(context, 6);
  run();
}

// A residual makes the model no chain of layers, so plans compute it. The results must equal those of a plan of exactly
// this size.
TEST(Inference, OtherModelsHavePlans) {
  ModelBuilder b("residual", {6});
  NodeId x = b.linear("1", b.input(), 6, {.activation = ops::Activation::tanh, .residual = b.input()});
  x = b.activation("act", x, ops::Activation::silu);
  b.activation("again", x, ops::Activation::silu);
  Seeded seeded(b.build(), DType::f64, 1);
  auto& [context, model, set] = seeded;
  Inference inference(context, model, set, {.max_batch = 9, .plan = {.dtype = DType::f64}});
  const std::vector<double> in = normal_numbers(6 * 9, 4);
  std::vector<double> copy = in, out(6 * 9);
  inference.run(TensorView(std::span(copy), {9, 6}), TensorView(std::span(out), {9, 6}));
  EXPECT_EQ(out, exactly<double>(model, set, in, 9, {6}));
}

}  // namespace
}  // namespace lockstep::nn

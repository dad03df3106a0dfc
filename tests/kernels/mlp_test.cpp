#include "tests/kernels/mlp_cases.hpp"

#include <cfenv>
#include <cmath>
#include <limits>

#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::Activation;

long double applied(Activation kind, long double x) {
  const auto sigmoid = [](long double v) { return 1 / (1 + std::exp(-v)); };
  switch (kind) {
    case Activation::gelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0L));
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x)));
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::relu:
      return x <= 0 ? 0 : x;
    case Activation::identity:
      break;
  }
  return x;
}

/// A context, and an Mlp with its packed parameters.
struct Packed {
  explicit Packed(const MlpParams& p, int threads = 1)
      : params(p),
        context({.threads = threads}),
        mlp(p.dtype, mlp_layers(p)),
        memory(mlp.packed_bytes(), context),
        view(memory.data(), DType::u8, Device::cpu(), {static_cast<std::int64_t>(memory.bytes())}) {
    std::uint64_t seed = 2;
    for (int i = 0; const ops::MlpLayer& layer : mlp.layers()) {
      weights.emplace_back(Shape{layer.outputs, layer.inputs}, p.dtype, normal(seed++, 0.4));
      biases.emplace_back(Shape{layer.outputs}, p.dtype, normal(seed++));
      ops::mlp_pack(context, mlp, i++, weights.back(), biases.back(), view);
    }
  }
  void run(const TensorView& x, const TensorView& y) { ops::mlp_forward(context, mlp, view, x, y); }

  MlpParams params;
  CpuContext context;
  ops::Mlp mlp;
  Buffer memory;
  TensorView view;
  std::vector<GuardedTensor> weights, biases;
};

std::vector<std::byte> bytes_of(const GuardedTensor& tensor, std::int64_t first, std::int64_t count) {
  const TensorView rows = tensor.view().slice(0, first, first + count);
  const auto* at = static_cast<const std::byte*>(rows.data);
  return {at, at + rows.bytes()};
}

TEST(Mlp, MatchesLoopsInLongDouble) {
  for (const OpCase& item : mlp_cases()) {
    const bool bias = item.name.find("without bias") == std::string::npos;
    expect_matches(item, [&](Inputs in, Outputs expected) {
      const std::size_t step = bias ? 2 : 1;
      const std::size_t layers = (in.size() - 1) / step;
      Activation kind = Activation::gelu;
      while (item.name.find(concat("mlp ", ops::name_of(kind), ' ')) != 0) {
        kind = static_cast<Activation>(static_cast<int>(kind) + 1);
      }
      const std::vector<double> x = in[0].values();
      std::vector<long double> now(x.begin(), x.end());
      const std::int64_t samples = in[0].view().shape[0];
      for (std::size_t l = 0; l < layers; ++l) {
        const Shape shape = in[1 + step * l].view().shape;
        const std::vector<double> w = in[1 + step * l].values();
        const std::vector<double> b = bias ? in[2 + step * l].values() : std::vector<double>();
        std::vector<long double> next;
        for (std::int64_t s = 0; s < samples; ++s) {
          for (std::int64_t o = 0; o < shape[0]; ++o) {
            long double sum = bias ? b[static_cast<std::size_t>(o)] : 0;
            for (std::int64_t i = 0; i < shape[1]; ++i) {
              sum += static_cast<long double>(w[static_cast<std::size_t>(o * shape[1] + i)]) *
                     now[static_cast<std::size_t>(s * shape[1] + i)];
            }
            next.push_back(l + 1 < layers ? applied(kind, sum) : sum);
          }
        }
        now = std::move(next);
      }
      expected[0].assign(std::vector<double>(now.begin(), now.end()));
    });
  }
}

// By the contract of Mlp, the bits of a sample's output must depend on the sample only.
TEST(Mlp, ASampleHasItsBitsInAnyNumberOfSamplesAndThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Activation kind : {Activation::tanh, Activation::gelu, Activation::silu, Activation::relu}) {
      for (const std::vector<std::int64_t>& widths : {std::vector<std::int64_t>{4, 32, 32, 1}, {3, 17, 33, 5, 1}}) {
        constexpr std::int64_t kMost = 3000;
        Packed one({.widths = widths, .kind = kind, .dtype = dtype});
        Packed three({.widths = widths, .kind = kind, .dtype = dtype}, 3);
        const GuardedTensor x(Shape{kMost, widths.front()}, dtype, normal(9));
        const GuardedTensor all(Shape{kMost, widths.back()}, dtype);
        const GuardedTensor again(Shape{kMost, widths.back()}, dtype);
        one.run(x, all);
        three.run(x, again);
        EXPECT_EQ(bytes_of(all, 0, kMost), bytes_of(again, 0, kMost));
        for (std::int64_t n = 1, first = 0; n <= 40; first += n, ++n) {
          const GuardedTensor y(Shape{n, widths.back()}, dtype);
          one.run(x.view().slice(0, first, first + n), y);
          EXPECT_EQ(bytes_of(y, 0, n), bytes_of(all, first, n)) << n << ' ' << dtype << ' ' << ops::name_of(kind);
          EXPECT_EQ(y.check(), "");
        }
      }
    }
  }
}

TEST(Mlp, HasTheBitsOfTheReferenceProducts) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Packed packed({.widths = {5, 40, 3}, .dtype = dtype});
    for (const std::int64_t n : {1, 6, 50}) {
      const GuardedTensor x(Shape{n, 5}, dtype, normal(9));
      const GuardedTensor hidden(Shape{n, 40}, dtype), expected(Shape{n, 3}, dtype), y(Shape{n, 3}, dtype);
      ops::MatmulDesc first{.dtype = dtype, .m = n, .n = 40, .k = 5, .transpose_b = true, .bias = true};
      first.activation = Activation::tanh;
      const ops::MatmulDesc second{.dtype = dtype, .m = n, .n = 3, .k = 40, .transpose_b = true, .bias = true};
      const auto a = ops::plan_matmul(packed.context, first, "reference");
      const auto b = ops::plan_matmul(packed.context, second, "reference");
      ops::matmul(packed.context, *a, x, packed.weights[0], packed.biases[0], hidden, {});
      ops::matmul(packed.context, *b, hidden, packed.weights[1], packed.biases[1], expected, {});
      packed.run(x, y);
      EXPECT_EQ(bytes_of(y, 0, n), bytes_of(expected, 0, n)) << n << ' ' << dtype;
    }
  }
}

TEST(Mlp, AnyStridesAxesAndTypes) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Packed packed({.widths = {3, 17, 2}, .dtype = dtype});
    constexpr std::int64_t kN = 60;
    const GuardedTensor x(Shape{kN, 3}, dtype, integers(9, -3, 3));
    const GuardedTensor expected(Shape{kN, 2}, dtype);
    packed.run(x, expected);
    for (const DType outer : {DType::f32, DType::f64}) {
      // x is a strided view (5, 12, 3) into an array (3, 12, 7). The two axes of samples, 5 and 12, cannot be joined to
      // one axis. y is a view (60, 2) with reversed samples.
      const GuardedTensor field(Shape{3, 12, 7}, outer, constant(99));
      const TensorView view(field.view().data, outer, Device::cpu(), {5, 12, 3}, {1, 7, 84});
      from_doubles(x.values(), view);
      const GuardedTensor out(Shape{2, kN}, outer);
      const auto size = static_cast<std::int64_t>(size_of(outer));
      packed.run(view, TensorView(static_cast<std::byte*>(out.view().data) + (kN - 1) * size, outer, Device::cpu(),
                                  {kN, 2}, {-1, kN}));
      const std::vector<double> want = expected.values();
      const std::vector<double> found = out.values();
      for (std::int64_t s = 0; s < kN; ++s) {
        for (std::int64_t o = 0; o < 2; ++o) {
          double value = want[static_cast<std::size_t>(s * 2 + o)];
          value = outer == DType::f32 ? static_cast<float>(value) : value;
          EXPECT_EQ(found[static_cast<std::size_t>(o * kN + kN - 1 - s)], value) << s;
        }
      }
      EXPECT_EQ(out.check() + field.check(), "");
    }
  }
}

TEST(Mlp, NaNStaysInItsSample) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::tanh,
                                Activation::sigmoid, Activation::relu, Activation::identity}) {
    for (const std::int64_t n : {1, 3, 16, 40}) {
      Packed packed({.widths = {4, 32, 1}, .kind = kind});
      for (std::int64_t bad = 0; bad < n; bad += 7) {
        const GuardedTensor x(Shape{n, 4}, DType::f32, normal(9));
        x.span<float>()[static_cast<std::size_t>(4 * bad + 2)] = std::numeric_limits<float>::quiet_NaN();
        const GuardedTensor y(Shape{n, 1}, DType::f32);
        packed.run(x, y);
        for (std::int64_t s = 0; s < n; ++s) {
          EXPECT_EQ(std::isnan(y.span<float>()[static_cast<std::size_t>(s)]), s == bad) << ops::name_of(kind);
        }
      }
    }
  }
}

// Vector lanes without a number must repeat numbers of other lanes. If they held zeros, infinity times zero would raise
// FE_INVALID.
TEST(Mlp, UnusedLanesRaiseNoException) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 3, 5, 19, 33}) {
      Packed packed({.widths = {2, 5, 33, 3}, .kind = Activation::relu, .dtype = dtype});
      for (GuardedTensor& weight : packed.weights) {
        weight.constant(0.5);
      }
      for (int i = 0; i < 3; ++i) {
        ops::mlp_pack(packed.context, packed.mlp, i, packed.weights[static_cast<std::size_t>(i)], {}, packed.view);
      }
      const GuardedTensor x(Shape{n, 2}, dtype, constant(std::numeric_limits<double>::infinity()));
      const GuardedTensor y(Shape{n, 3}, dtype);
      std::feclearexcept(FE_ALL_EXCEPT);
      packed.run(x, y);
      EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW), 0) << n;
      for (const double value : y.values()) {
        EXPECT_TRUE(std::isinf(value));
      }
    }
  }
}

TEST(Mlp, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(mlp_case({.widths = {4, 32, 32, 1}, .samples = 5000}));
  expect_same_bits_for_threads(mlp_case({.widths = {7, 64, 3}, .samples = 3001, .dtype = DType::f64}));
}

TEST(Mlp, RefusesWhatTheContractExcludes) {
  using Layers = std::vector<ops::MlpLayer>;
  EXPECT_TRUE(ops::Mlp::supports(DType::f64, Layers{{4, 32}, {32, 1}}));
  EXPECT_FALSE(ops::Mlp::supports(DType::bf16, Layers{{4, 32}, {32, 1}}));
  EXPECT_FALSE(ops::Mlp::supports(DType::f32, Layers{}));
  EXPECT_FALSE(ops::Mlp::supports(DType::f32, Layers{{4, 32}, {31, 1}}));
  EXPECT_FALSE(ops::Mlp::supports(DType::f32, Layers{{4, 257}}));
  EXPECT_FALSE(ops::Mlp::supports(DType::f64, Layers{{256, 256}}));
  EXPECT_FALSE(ops::Mlp::supports(DType::f32, Layers(17, {4, 4})));
  EXPECT_THROW(ops::Mlp(DType::f32, Layers{{0, 1}}), UsageError);

  Packed packed({.widths = {4, 32, 1}});
  const GuardedTensor x(Shape{3, 4}, DType::f32, normal(1)), y(Shape{3, 1}, DType::f32), wide(Shape{3, 5}, DType::f32);
  const GuardedTensor less(Shape{2, 1}, DType::f32), whole(Shape{3, 4}, DType::i32);
  EXPECT_THROW(packed.run(wide, y), ShapeError);
  EXPECT_THROW(packed.run(x, wide), ShapeError);
  EXPECT_THROW(packed.run(x, less), ShapeError);
  EXPECT_THROW(packed.run(whole, y), DTypeError);
  EXPECT_THROW(ops::mlp_forward(packed.context, packed.mlp, packed.view.slice(0, 0, 8), x, y), ShapeError);
  const auto pack = [&](int layer, const TensorView& weight, const TensorView& bias) {
    ops::mlp_pack(packed.context, packed.mlp, layer, weight, bias, packed.view);
  };
  EXPECT_THROW(pack(2, packed.weights[0], packed.biases[0]), UsageError);
  EXPECT_THROW(pack(0, packed.weights[1], packed.biases[0]), ShapeError);
  EXPECT_THROW(pack(0, packed.weights[0], packed.biases[1]), ShapeError);
  EXPECT_THROW(pack(0, GuardedTensor(Shape{32, 4}, DType::f64), packed.biases[0]), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing

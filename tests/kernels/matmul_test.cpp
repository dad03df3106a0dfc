#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/tensor_view.hpp>

#include "tests/kernels/matmul_cases.hpp"

namespace lockstep {
namespace {

using ops::GradMode;
using ops::MatmulDesc;
using testing::matmul_cases;
using testing::MatmulCase;

Shape a_shape(const MatmulDesc& d) {
  return d.transpose_a ? Shape{d.k, d.m} : Shape{d.m, d.k};
}
Shape b_shape(const MatmulDesc& d) {
  return d.transpose_b ? Shape{d.n, d.k} : Shape{d.k, d.n};
}

template <class T>
std::vector<T> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  std::vector<T> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return static_cast<T>(uniform(generator)); });
  return values;
}

template <class T>
struct Inputs {
  explicit Inputs(const MatmulDesc& d)
      : a(random_values<T>(d.m * d.k, 1)),
        b(random_values<T>(d.k * d.n, 2)),
        bias(random_values<T>(d.n, 3)),
        before(random_values<T>(d.m * d.n, 4)) {}
  std::vector<T> a;
  std::vector<T> b;
  std::vector<T> bias;
  std::vector<T> before;
};

template <class T>
std::vector<double> oracle(const MatmulDesc& d, const Inputs<T>& in) {
  std::vector<double> c;
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      double sum = d.bias ? static_cast<double>(in.bias[static_cast<std::size_t>(j)]) : 0.0;
      if (d.grad_mode == GradMode::accumulate) {
        sum += static_cast<double>(in.before[static_cast<std::size_t>(i * d.n + j)]);
      }
      for (std::int64_t l = 0; l < d.k; ++l) {
        sum += static_cast<double>(in.a[static_cast<std::size_t>(d.transpose_a ? l * d.m + i : i * d.k + l)]) *
               static_cast<double>(in.b[static_cast<std::size_t>(d.transpose_b ? j * d.k + l : l * d.n + j)]);
      }
      c.push_back(sum);
    }
  }
  return c;
}

/// Runs with the output poisoned (or set to `before`) and bytes around output and workspace watched.
template <class T>
std::vector<T> run(Context& context, const MatmulDesc& d, const std::string& choice, const Inputs<T>& in) {
  constexpr std::size_t kGuard = 64;
  constexpr unsigned char kPattern = 0xA5;
  struct alignas(64) Block {
    unsigned char bytes[kGuard];
  };
  const auto guarded = [](std::size_t bytes) {
    std::vector<Block> blocks((bytes + kGuard - 1) / kGuard + 2);
    std::memset(blocks.data(), kPattern, blocks.size() * kGuard);
    return blocks;
  };
  const auto intact = [](const std::vector<Block>& blocks, std::size_t bytes) {
    const auto* all = blocks.data()->bytes;
    const auto clean = [](unsigned char byte) { return byte == kPattern; };
    return std::all_of(all, all + kGuard, clean) &&
           std::all_of(all + kGuard + bytes, all + blocks.size() * kGuard, clean);
  };
  const auto plan = ops::plan_matmul(context, d, choice);
  std::vector<Block> output = guarded(in.before.size() * sizeof(T));
  std::vector<Block> scratch = guarded(plan->workspace_bytes());
  T* c = reinterpret_cast<T*>(&output[1]);
  std::fill_n(c, in.before.size(), std::numeric_limits<T>::quiet_NaN());
  if (d.grad_mode == GradMode::accumulate) {
    std::copy(in.before.begin(), in.before.end(), c);
  }
  std::memset(&scratch[1], 0xFF, plan->workspace_bytes());
  ops::matmul(
      context, *plan, TensorView(std::span(in.a), a_shape(d)), TensorView(std::span(in.b), b_shape(d)),
      d.bias ? TensorView(std::span(in.bias), Shape{d.n}) : TensorView(),
      TensorView(c, d.dtype, Device::cpu(), Shape{d.m, d.n}),
      TensorView(&scratch[1], DType::u8, Device::cpu(), Shape{static_cast<std::int64_t>(plan->workspace_bytes())}));
  context.synchronize();
  EXPECT_TRUE(intact(output, in.before.size() * sizeof(T))) << "output guard, " << plan->choice();
  EXPECT_TRUE(intact(scratch, plan->workspace_bytes())) << "workspace guard, " << plan->choice();
  return {c, c + in.before.size()};
}

template <class T>
double relative_error(const std::vector<T>& out, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    error += std::pow(static_cast<double>(out[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void compare_with_oracle(Context& context, double tolerance) {
  for (const MatmulCase& item : matmul_cases()) {
    MatmulDesc d = item.desc;
    d.dtype = dtype_of<T>;
    const Inputs<T> in(d);
    const auto expected = oracle(d, in);
    for (const std::string& choice : ops::matmul_choices(context, d)) {
      const double error = relative_error(run(context, d, choice, in), expected);
      EXPECT_FALSE(!(error <= tolerance)) << item.name << ", " << choice << ": " << error;
    }
  }
}

TEST(Matmul, EveryChoiceMatchesTheOracleInF32) {
  CpuContext context({.threads = 2});
  compare_with_oracle<float>(context, 1e-6);
}

TEST(Matmul, ReferenceMatchesTheOracleInF64) {
  CpuContext context({.threads = 3});
  compare_with_oracle<double>(context, 1e-15);
}

TEST(Matmul, ByHand) {
  CpuContext context;
  MatmulDesc d;
  d.m = 2;
  d.n = 2;
  d.k = 3;
  d.transpose_b = true;
  d.bias = true;
  Inputs<float> in(d);
  in.a = {1, 2, 3,  //
          4, 5, 6};
  in.b = {1, 10, 100,  //
          0, 1,  -1};
  in.bias = {0.5F, -0.5F};
  for (const std::string& choice : ops::matmul_choices(context, d)) {
    EXPECT_EQ(run(context, d, choice, in), (std::vector<float>{321.5F, -1.5F, 654.5F, -1.5F})) << choice;
  }
}

TEST(Matmul, SameBitsForEveryThreadCountOfTheReferenceAndForEveryRunOfAll) {
  for (const MatmulCase& item : matmul_cases()) {
    Inputs<float> in(item.desc);
    CpuContext one({.threads = 1});
    CpuContext two({.threads = 2});
    const auto expected = run(one, item.desc, "reference", in);
    EXPECT_TRUE(same_bits(expected, run(two, item.desc, "reference", in))) << item.name;
    std::vector<std::vector<float>> first;
    const auto choices = ops::matmul_choices(two, item.desc);
    for (const std::string& choice : choices) {
      first.push_back(run(two, item.desc, choice, in));
      EXPECT_TRUE(same_bits(first.back(), run(two, item.desc, choice, in))) << item.name << ", " << choice;
    }
    in.a[in.a.size() / 2] += 0.5F;
    EXPECT_FALSE(same_bits(expected, run(two, item.desc, "reference", in))) << item.name;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      EXPECT_FALSE(same_bits(first[i], run(two, item.desc, choices[i], in))) << item.name << ", " << choices[i];
    }
  }
}

TEST(Matmul, ChoicesMakeTheirPlanAgain) {
  CpuContext context;
  for (const MatmulCase& item : matmul_cases()) {
    const auto choices = ops::matmul_choices(context, item.desc);
    ASSERT_FALSE(choices.empty());
    EXPECT_EQ(choices.back(), "reference");
    EXPECT_EQ(ops::plan_matmul(context, item.desc)->choice(), choices.front());
    for (const std::string& choice : choices) {
      const auto plan = ops::plan_matmul(context, item.desc, choice);
      EXPECT_EQ(plan->choice(), choice);
      EXPECT_TRUE(plan->deterministic());
    }
  }
}

TEST(Matmul, PlanningRefusesWhatMakesNoSense) {
  CpuContext context;
  MatmulDesc d;
  EXPECT_THROW((void)ops::plan_matmul(context, d, "no_such_provider"), UsageError);
  EXPECT_THROW((void)ops::plan_matmul(context, d, "reference:no_such_algorithm"), UsageError);
  d.k = 0;
  EXPECT_THROW((void)ops::plan_matmul(context, d), ShapeError);
  d = {};
  d.grad_mode = GradMode::ignore;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UsageError);
  d.grad_mode = GradMode::accumulate;
  d.bias = true;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UsageError);
  d = {};
  d.dtype = DType::u8;
  EXPECT_THROW((void)ops::plan_matmul(context, d), DTypeError);
  d.dtype = DType::f16;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UnsupportedError);
  EXPECT_THROW((void)ops::plan_matmul(context, d, "reference"), UnsupportedError);
  d.dtype = DType::f64;
  if (ops::matmul_choices(context, MatmulDesc{}).front() == "onednn") {
    EXPECT_THROW((void)ops::plan_matmul(context, d, "onednn"), UnsupportedError);
  }
}

TEST(Matmul, RunningRefusesOperandsThatDoNotFit) {
  CpuContext context;
  MatmulDesc d;
  d.m = 2;
  d.n = 3;
  d.k = 4;
  d.transpose_b = true;
  d.bias = true;
  const auto plan = ops::plan_matmul(context, d, "reference");
  alignas(64) std::uint8_t memory[256];
  const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
  ASSERT_TRUE(bytes > 0 && bytes < 256);
  std::vector<float> in(12);
  std::vector<float> out(12);
  const auto view = [](std::vector<float>& v, const Shape& shape) {
    return TensorView(std::span(v).first(static_cast<std::size_t>(shape.numel())), shape);
  };
  const TensorView a = view(in, {2, 4});
  const TensorView b = view(in, {3, 4});
  const TensorView bias = view(in, {3});
  const TensorView c = view(out, {2, 3});
  const TensorView workspace(memory, DType::u8, Device::cpu(), Shape{bytes});
  const auto call = [&](const TensorView& a_arg, const TensorView& b_arg, const TensorView& bias_arg,
                        const TensorView& c_arg, const TensorView& workspace_arg) {
    ops::matmul(context, *plan, a_arg, b_arg, bias_arg, c_arg, workspace_arg);
  };
  EXPECT_NO_THROW(call(a, b, bias, c, workspace));
  EXPECT_THROW(call(b, b, bias, c, workspace), ShapeError);
  EXPECT_THROW(call(a, a, bias, c, workspace), ShapeError);
  EXPECT_THROW(call(a, b, {}, c, workspace), ShapeError);
  EXPECT_THROW(call(a, b, bias, view(out, {3, 2}), workspace), ShapeError);
  EXPECT_THROW(call(a, b, bias, view(in, {2, 3}), workspace), ShapeError);
  TensorView other = a;
  other.dtype = DType::f64;
  EXPECT_THROW(call(other, b, bias, c, workspace), DTypeError);
  other = a;
  other.strides = Strides{1, 2};
  EXPECT_THROW(call(other, b, bias, c, workspace), ShapeError);
  other = a;
  other.device = Device::cuda(0);
  EXPECT_THROW(call(other, b, bias, c, workspace), DeviceError);
  EXPECT_THROW(call(a, b, bias, c, workspace.slice(0, 0, bytes - 1)), ShapeError);
  EXPECT_THROW(call(a, b, bias, c, TensorView(memory + 1, DType::u8, Device::cpu(), Shape{bytes})), ShapeError);
}

}  // namespace
}  // namespace lockstep

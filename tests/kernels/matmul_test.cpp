#include "tests/kernels/matmul_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <lockstep/kernels/linear_epilogue.hpp>

#include "tests/support/op_checks.hpp"
#include "tests/support/processor.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;
using ops::MatmulDesc;

/// Returns the activation of x by the definitions in activation.hpp.
double activated(ops::Activation kind, double x) {
  switch (kind) {
    case ops::Activation::gelu:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case ops::Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case ops::Activation::silu:
      return x / (1 + std::exp(-x));
    case ops::Activation::tanh:
      return std::tanh(x);
    case ops::Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case ops::Activation::relu:
      return x > 0 ? x : 0;
    case ops::Activation::identity:
      break;
  }
  return x;
}

/// Computes the product by its definition, in double. expected[0] holds c before the call and receives the result.
void oracle(const MatmulDesc& d, Inputs inputs, Outputs expected) {
  const std::vector<double> a = inputs[0].values();
  const std::vector<double> b = inputs[1].values();
  const std::vector<double> bias = d.bias ? inputs[2].values() : std::vector<double>{};
  std::vector<double> c = expected[0].values();
  for (std::int64_t p = 0; p < std::max<std::int64_t>(d.batch, 1); ++p) {
    for (std::int64_t i = 0; i < d.m; ++i) {
      for (std::int64_t j = 0; j < d.n; ++j) {
        double& sum = c[static_cast<std::size_t>((p * d.m + i) * d.n + j)];
        if (d.grad_mode == GradMode::overwrite) {
          sum = d.bias ? bias[static_cast<std::size_t>(j)] : 0.0;
        }
        for (std::int64_t l = 0; l < d.k; ++l) {
          sum += a[static_cast<std::size_t>(p * d.m * d.k + (d.transpose_a ? l * d.m + i : i * d.k + l))] *
                 b[static_cast<std::size_t>(p * d.k * d.n + (d.transpose_b ? j * d.k + l : l * d.n + j))];
        }
        sum = activated(d.activation, sum);
      }
    }
  }
  expected[0].assign(c);
}

void expect_oracle(Context& context, const MatmulDesc& d) {
  for (const std::string& choice : ops::matmul_choices(context, d)) {
    expect_matches(matmul_case(d, choice), context, [&](Inputs in, Outputs out) { oracle(d, in, out); });
  }
}

void expect_oracle(Context& context, DType dtype) {
  for (const MatmulDesc& d : matmul_descs(dtype)) {
    expect_oracle(context, d);
  }
  for (const MatmulDesc& d : activated_matmul_descs(dtype)) {
    expect_oracle(context, d);
  }
}

TEST(Matmul, EveryChoiceMatchesTheOracleInF32) {
  CpuContext context({.threads = 2});
  expect_oracle(context, DType::f32);
}

TEST(Matmul, ReferenceMatchesTheOracleInF64) {
  CpuContext context({.threads = 3});
  expect_oracle(context, DType::f64);
}

TEST(Matmul, EveryChoiceMatchesTheOracleInBf16) {
  CpuContext context({.threads = 2});
  std::vector<MatmulDesc> descs = activated_matmul_descs(DType::bf16);
  const std::vector<MatmulDesc> plain = matmul_descs(DType::bf16);
  for (std::size_t i = 0; i < plain.size(); i += 5) {  // every fifth product, so that all twelve variants occur
    descs.push_back(plain[i]);
  }
  for (MatmulDesc& d : descs) {
    for (const bool accumulator_output : {false, true}) {
      d.accumulator_output = accumulator_output;
      expect_oracle(context, d);
    }
  }
}

TEST(Matmul, RunsOnAWorkerStream) {
  Stream stream = Stream::host_worker("matmul_test");
  CpuContext context({.threads = 2, .stream = &stream});
  expect_oracle(context, DType::f32);
}

TEST(Matmul, ByHand) {
  CpuContext context;
  MatmulDesc d;
  d.m = 2;
  d.n = 2;
  d.k = 3;
  d.transpose_b = true;
  d.bias = true;
  for (const std::string& choice : ops::matmul_choices(context, d)) {
    OpCase item = matmul_case(d, choice);
    item.inputs[0].start = values({1, 2, 3,  //
                                   4, 5, 6});
    item.inputs[1].start = values({1, 10, 100,  //
                                   0, 1, -1});
    item.inputs[2].start = values({0.5, -0.5});
    const CheckedRun instance(item, context);
    EXPECT_EQ(instance.output(0).values(), (std::vector<double>{321.5, -1.5, 654.5, -1.5})) << choice;
  }
}

TEST(Matmul, ABatchHasALeadingAxis) {
  CpuContext context;
  MatmulDesc d;
  d.batch = 2;
  d.m = 1;
  d.n = 2;
  d.k = 2;
  for (const std::string& choice : ops::matmul_choices(context, d)) {
    OpCase item = matmul_case(d, choice);
    item.inputs[0].start = values({1, 2, 3, 4});
    item.inputs[1].start = values({1, 0, 0, 1, 10, 0, 0, 100});
    const CheckedRun instance(item, context);
    EXPECT_EQ(instance.output(0).values(), (std::vector<double>{1, 2, 30, 400})) << choice;
    EXPECT_EQ(instance.output(0).view().shape, (Shape{2, 1, 2}));
    const auto plan = ops::plan_matmul(context, d, choice);
    const GuardedTensor flat(Shape{2, 2}, DType::f32);
    EXPECT_THROW(ops::matmul(context, *plan, flat, instance.inputs()[1], {}, instance.output(0), {}), ShapeError);
  }
}

/// The integers are so small that every sum is exact in any order, so the results must be exact. An element that is
/// missing or added twice would change the result.
TEST(Matmul, TheReferenceIsExactOnWholeNumbersForSizesAroundItsRegistersAndBlocks) {
  const auto whole = [](std::uint64_t seed) {
    return mapped(uniform(seed, -4, 4), [](double value) { return std::round(value) + 0.0; });  // no -0
  };
  const std::int64_t sizes[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 129};
  int variant = 0;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t m : sizes) {
      for (const std::int64_t n : sizes) {
        const std::int64_t k = sizes[static_cast<std::size_t>(variant) % std::size(sizes)];
        MatmulDesc d{.dtype = dtype, .batch = variant % 7 == 0 ? 2 : 0, .m = m, .n = n, .k = k};
        d.transpose_a = (variant & 1) != 0;
        d.transpose_b = (variant & 2) != 0;
        d.bias = variant % 3 == 1;
        d.grad_mode = variant % 3 == 2 ? GradMode::accumulate : GradMode::overwrite;
        d.accumulator_output = true;
        variant += 5;
        OpCase item = matmul_case(d, "reference");
        for (std::size_t i = 0; i < item.inputs.size(); ++i) {
          item.inputs[i].start = whole(10 + i);
        }
        if (d.grad_mode == GradMode::accumulate) {
          item.outputs[0].start = whole(20);
        }
        item.tolerance = 0;
        expect_matches(item, [&](Inputs in, Outputs out) { oracle(d, in, out); });
      }
    }
  }
}

/// Returns the first `rows` rows of a.
TensorView first_rows(const TensorView& a, std::int64_t rows) {
  return a.slice(0, 0, rows);
}

/// A linear layer must give a sample's row the same bits in every batch size.
TEST(Matmul, TheBitsOfARowDoNotDependOnTheNumberOfRows) {
  CpuContext context;
  const std::int64_t rows[] = {1, 2, 3, 7, 8, 31, 32, 33, 1024};
  const std::int64_t layers[][2] = {{32, 4}, {32, 32}, {1, 32}, {33, 17}, {7, 100}, {130, 65}};  // n, k
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [n, k] : layers) {
      for (const ops::Activation activation : {ops::Activation::tanh, ops::Activation::gelu}) {
        MatmulDesc d{.dtype = dtype, .m = 1024, .n = n, .k = k, .transpose_b = true, .bias = true};
        d.activation = activation;
        for (const std::string& choice : ops::matmul_choices(context, d)) {
          if (choice.rfind("onednn", 0) == 0 && !onednn_rows_are_alike()) {
            continue;
          }
          const OpCase item = matmul_case(d, choice);
          const CheckedRun all(item, context);
          const auto& in = all.inputs();
          for (const std::int64_t m : rows) {
            for (const int threads : {1, 2}) {
              CpuContext other({.threads = threads});
              MatmulDesc fewer = d;
              fewer.m = m;
              const auto plan = ops::plan_matmul(other, fewer, choice);
              const GuardedTensor c(Shape{m, n}, dtype);
              const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
              const Tensor workspace = Tensor::empty(other, Shape{bytes}, DType::u8);
              ops::matmul(other, *plan, first_rows(in[0], m), in[1], in[2], c, workspace.view());
              other.synchronize();
              expect_same_bits(c, first_rows(all.output(0), m), concat(item.name, " rows ", m));
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, SameBitsForEveryThreadCountOfTheReferenceAndForEveryRunOfAll) {
  CpuContext context({.threads = 2});
  for (const MatmulDesc& d : matmul_descs(DType::f32)) {
    expect_same_bits_for_threads(matmul_case(d, "reference"));
    for (const std::string& choice : ops::matmul_choices(context, d)) {
      const OpCase same = matmul_case(d, choice);
      expect_repeatable(same, context);
    }
  }
}

TEST(Matmul, SameBitsInBf16) {
  CpuContext context({.threads = 2});
  MatmulDesc d{.dtype = DType::bf16, .m = 33, .n = 130, .k = 17};
  expect_same_bits_for_threads(matmul_case(d, "reference"));
  for (const std::string& choice : ops::matmul_choices(context, d)) {
    expect_repeatable(matmul_case(d, choice), context);
  }
}

/// The reference with a bias and an activation must give the bits of two passes: a plain product, then
/// linear_epilogue_forward().
TEST(Matmul, AnActivationOfTheReferenceIsThatOfASecondPass) {
  CpuContext context({.threads = 2});
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const MatmulDesc& d : activated_matmul_descs(dtype)) {
      CheckedRun fused(matmul_case(d, "reference"), context);
      MatmulDesc alone = d;
      alone.bias = false;
      alone.activation = ops::Activation::identity;
      const CheckedRun product(matmul_case(alone, "reference"), context, &fused.inputs());
      const TensorView y = product.output(0);
      EXPECT_FALSE(has_same_bits(fused.output(0), y));  // control: the second pass does change bits
      const TensorView bias = d.bias ? TensorView(fused.inputs()[2]) : TensorView();
      ops::linear_epilogue_forward(context, d.activation, y, bias, {}, y);
      expect_same_bits(fused.output(0), y, ops::name_of(d.activation));
    }
  }
}

TEST(Matmul, AnActivationOfNaN) {
  CpuContext context;
  for (const ops::Activation kind : {ops::Activation::gelu, ops::Activation::gelu_tanh, ops::Activation::silu,
                                     ops::Activation::tanh, ops::Activation::sigmoid, ops::Activation::relu}) {
    const MatmulDesc d{.m = 2, .n = 1, .k = 2, .activation = kind};
    for (const std::string& choice : ops::matmul_choices(context, d)) {
      OpCase item = matmul_case(d, choice);
      item.inputs[0].start = values({NAN, 1, 1, 1});
      item.inputs[1].start = values({1, 1});
      const CheckedRun instance(item, context);
      const std::vector<double> c = instance.output(0).values();
      const bool may_be_zero = kind == ops::Activation::relu && choice.starts_with("onednn");
      EXPECT_TRUE(std::isnan(c[0]) || (may_be_zero && c[0] == 0)) << name_of(kind) << ' ' << choice << ' ' << c[0];
      EXPECT_GT(c[1], 0.5) << name_of(kind) << ' ' << choice;
    }
  }
}

TEST(Matmul, AnActivationIsFusedWhereTheBestGuessHasItAndKeepsNaN) {
  CpuContext context;
  MatmulDesc d{.m = 8, .n = 8, .k = 8, .bias = true, .activation = ops::Activation::gelu_tanh};
  EXPECT_TRUE(ops::fuses_activation(context, d));
  d.activation = ops::Activation::relu;
  EXPECT_EQ(ops::fuses_activation(context, d), ops::matmul_choices(context, d).front() == "reference");
  d.dtype = DType::f64;  // lockstep's own loops are the first choice
  EXPECT_TRUE(ops::fuses_activation(context, d));
  d.dtype = DType::f16;  // no host provider supports f16
  EXPECT_FALSE(ops::fuses_activation(context, d));
}

TEST(Matmul, ChoicesMakeTheirPlanAgain) {
  CpuContext context;
  std::vector<MatmulDesc> descs = matmul_descs(DType::f32);
  for (const MatmulDesc& d : activated_matmul_descs(DType::f32)) {
    descs.push_back(d);
  }
  for (const MatmulDesc& d : descs) {
    const auto choices = ops::matmul_choices(context, d);
    ASSERT_FALSE(choices.empty());
    EXPECT_EQ(choices.back(), "reference");
    EXPECT_EQ(ops::plan_matmul(context, d)->choice(), choices.front());
    for (const std::string& choice : choices) {
      const auto plan = ops::plan_matmul(context, d, choice);
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
  EXPECT_THROW((void)ops::plan_matmul(context, with(MatmulDesc{}, &MatmulDesc::batch, -1)), ShapeError);
  d = {};
  d.grad_mode = GradMode::ignore;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UsageError);
  d.grad_mode = GradMode::accumulate;
  d.bias = true;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UsageError);
  d.bias = false;
  d.activation = ops::Activation::relu;
  EXPECT_THROW((void)ops::plan_matmul(context, d), UsageError);
  d.grad_mode = GradMode::overwrite;
  d.activation = static_cast<ops::Activation>(99);
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
    EXPECT_THROW((void)ops::plan_matmul(context, MatmulDesc{}, "onednn:via-f32"), UnsupportedError);
    EXPECT_THROW((void)ops::plan_matmul(context, d, "onednn:via-f64"), UsageError);
    d.dtype = DType::bf16;
    const std::vector<std::string> choices = ops::matmul_choices(context, d);
    EXPECT_NE(std::find(choices.begin(), choices.end(), "onednn:via-f32"), choices.end());
    for (const std::string& choice : choices) {
      EXPECT_EQ(ops::plan_matmul(context, d, choice)->choice(), choice);
    }
  }
}

/// A plan that needs a workspace and computes nothing. The plans of lockstep's own loops need no workspace, so they
/// cannot be used here.
class NeedsWorkspace final : public ops::MatmulPlan {
 public:
  explicit NeedsWorkspace(const MatmulDesc& desc) : MatmulPlan(Device::cpu(), desc) {}
  std::size_t workspace_bytes() const override { return 192; }
  bool deterministic() const override { return true; }
  std::string choice() const override { return "none"; }
  void run(Context& /*context*/, const TensorView& /*a*/, const TensorView& /*b*/, const TensorView& /*bias*/,
           const TensorView& /*c*/, const TensorView& /*workspace*/) const override {}
};

TEST(Matmul, RunningRefusesOperandsThatDoNotFit) {
  CpuContext context;
  MatmulDesc d;
  d.m = 2;
  d.n = 3;
  d.k = 4;
  d.transpose_b = true;
  d.bias = true;
  const NeedsWorkspace plan(d);
  alignas(64) std::uint8_t memory[256];
  const auto bytes = static_cast<std::int64_t>(plan.workspace_bytes());
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
    ops::matmul(context, plan, a_arg, b_arg, bias_arg, c_arg, workspace_arg);
  };
  EXPECT_NO_THROW(call(a, b, bias, c, workspace));
  EXPECT_THROW(call(b, b, bias, c, workspace), ShapeError);
  EXPECT_THROW(call(a, a, bias, c, workspace), ShapeError);
  EXPECT_THROW(call(a, b, {}, c, workspace), ShapeError);
  EXPECT_THROW(call(a, b, bias, view(out, {3, 2}), workspace), ShapeError);
  EXPECT_THROW(call(a, b, bias, view(in, {2, 3}), workspace), ShapeError);
  EXPECT_THROW(call(with(a, &TensorView::dtype, DType::f64), b, bias, c, workspace), DTypeError);
  EXPECT_THROW(call(with(a, &TensorView::strides, Strides{1, 2}), b, bias, c, workspace), ShapeError);
  EXPECT_THROW(call(with(a, &TensorView::device, Device::cuda(0)), b, bias, c, workspace), DeviceError);
  EXPECT_THROW(call(a, b, bias, c, workspace.slice(0, 0, bytes - 1)), ShapeError);
  EXPECT_THROW(call(a, b, bias, c, TensorView(memory + 1, DType::u8, Device::cpu(), Shape{bytes})), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing

// Tests the calls that are timed for a convolution that also computes the sums of a batch norm. A plan with wrong
// results must be refused.
#include <lockstep/nn/plan/norm_trial.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {
namespace {

/// A plan that also computes the sums of a batch norm and then spoils its output.
class Spoiled final : public ops::ConvPlan {
 public:
  using Spoil = std::function<void(const TensorView& out, const ops::ConvNormOperands& norm)>;
  Spoiled(std::unique_ptr<ops::ConvPlan> plan, Spoil spoil)
      : ConvPlan(plan->device(), plan->desc(), plan->pass()), plan_(std::move(plan)), spoil_(std::move(spoil)) {}
  std::size_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  bool deterministic() const override { return true; }
  bool serves_norm() const override { return true; }
  std::string choice() const override { return "spoiled"; }
  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& out,
           const TensorView& workspace) const override {
    plan_->run(context, a, b, bias, out, workspace);
  }
  void run_for_norm(Context& context, const TensorView& a, const TensorView& b, const TensorView& out,
                    const TensorView& workspace, const ops::ConvNormOperands& norm) const override {
    plan_->run_for_norm(context, a, b, out, workspace, norm);
    spoil_(out, norm);
  }

 private:
  std::unique_ptr<ops::ConvPlan> plan_;
  Spoil spoil_;
};

struct Trial {
  CpuContext context{{.threads = 1}};
  ops::ConvDesc desc;
  ops::ConvPass pass;
  Tensor a, b, out, workspace;
  std::unique_ptr<NormTrial> trial;

  Trial(ops::ConvPass of, const ops::ConvNorm& norm) : pass(of) {
    desc.batch = 3;
    desc.in_channels = 8;
    desc.out_channels = 16;
    desc.in_size = {5, 6, 1};
    desc.kernel = {3, 3, 1};
    desc.pad_before = desc.pad_after = {1, 1, 0};
    desc.norm = norm;
    const bool forward = of == ops::ConvPass::forward;
    a = Tensor::rand(context, forward ? desc.x_shape() : desc.y_shape(), DType::f32, 1);
    b = Tensor::rand(context, desc.weights_shape(), DType::f32, 2);
    out = Tensor::zeros(context, forward ? desc.y_shape() : desc.x_shape(), DType::f32);
    workspace = Tensor::zeros(context, Shape{1 << 16}, DType::u8);
    trial = std::make_unique<NormTrial>(context, desc, of);
    trial->check(*plan("reference"), operands());
  }
  std::unique_ptr<ops::ConvPlan> plan(const std::string& choice) {
    return ops::plan_conv2d(context, desc, pass, choice);
  }
  NormTrial::Operands operands() { return {a.view(), b.view(), out.view(), workspace.view()}; }
  void check(Spoiled::Spoil spoil) { trial->check(Spoiled(plan("reference:norm"), std::move(spoil)), operands()); }
};

TEST(NormTrial, ForwardRefusesOtherSums) {
  Trial t(ops::ConvPass::forward, {.wanted = true});
  EXPECT_TRUE(t.trial->checks());
  EXPECT_NO_THROW(t.check([](const TensorView&, const ops::ConvNormOperands&) {}));
  EXPECT_THROW(t.check([](const TensorView& y, const ops::ConvNormOperands& norm) {
    norm.sums.as<float>()[3] += 0.1F * std::sqrt(norm.sums.as<float>()[16 + 3] * static_cast<float>(y.numel() / 16));
  }),
               UnsupportedError);
  EXPECT_THROW(t.check([](const TensorView&, const ops::ConvNormOperands& norm) { norm.sums.as<float>()[21] *= 1.1F; }),
               UnsupportedError);
  EXPECT_THROW(t.check([](const TensorView&, const ops::ConvNormOperands& norm) { norm.sums.as<float>()[0] = NAN; }),
               UnsupportedError)
      << "as what is not written, or added to";
}

TEST(NormTrial, BackwardRefusesOtherSumsAndGradients) {
  for (const ops::ConvNorm norm : {ops::ConvNorm{.wanted = true}, ops::ConvNorm{.wanted = true, .addend = true},
                                   ops::ConvNorm{.wanted = true, .addend = true, .pair = true}}) {
    Trial t(ops::ConvPass::backward_data, norm);
    EXPECT_NO_THROW(t.check([](const TensorView&, const ops::ConvNormOperands&) {}));
    for (const std::int64_t row : {0, 1, 2}) {
      if (row < 2 || norm.pair) {
        EXPECT_THROW(t.check([&](const TensorView&, const ops::ConvNormOperands& of) {
          of.sums.as<float>()[8 * row + 1] += 0.1F * of.sums.as<float>()[1];
        }),
                     UnsupportedError)
            << row;
      }
    }
    EXPECT_THROW(t.check([](const TensorView& g, const ops::ConvNormOperands&) {
      std::swap(g.as<float>()[0], g.as<float>()[1]);
    }),
                 UnsupportedError)
        << "as a mask in another order of bits would do";
  }
}

/// The clock favours plans that also compute the sums of a batch norm (choice ":norm"). A plan with the resulting
/// choices must then use them.
TEST(NormTrial, ChoicesServeNormsWhereThatIsFaster) {
  CpuContext context({.threads = 1});
  const Model model = cifar_resnet(8, 10, 8, 8);
  PlanOptions options{.fusions = Fusions::on, .cooperative = false};
  const Plan plan(context, model, Mode::train, 2, options);
  int runs = 0;
  const CallTimer timer = [&](Context&, const std::string& choice, const std::function<void()>& run) {
    run();
    ++runs;
    return choice.find(":norm") != std::string::npos ? 1.0 : 2.0;
  };
  ChoiceTable table;
  ChoiceReport report;
  options.choices = choose_libraries(context, plan.library_plans(), {.timer = timer}, table, &report);
  EXPECT_TRUE(report.refused.empty());
  EXPECT_GT(runs, 0);
  const Plan serving(context, model, Mode::train, 2, options);
  int forward = 0;
  int backward = 0;
  for (const Call& call : serving.calls()) {
    forward += call.op == "conv2d forward_with_sums reference:norm" ? 1 : 0;
    backward += call.op == "conv2d backward_data_for_norm reference:norm" ? 1 : 0;
  }
  EXPECT_EQ(forward, 7) << "the stem and two convolutions of three blocks";
  EXPECT_EQ(backward, 6) << "all but the stem's";
  EXPECT_EQ(serving.choices(), options.choices);
}

TEST(NormTrial, RandomNumbersFillMoreThanABlock) {
  CpuContext context;
  constexpr std::int64_t kCount = (std::int64_t{5} << 19) + 3;
  const Tensor numbers = small_random_numbers(context, kCount, 1);
  const Tensor values = Tensor::zeros(context, Shape{kCount}, DType::f32);
  copy(context, numbers.view(), values.view());
  context.synchronize();
  const auto* const at = values.view().as<float>();
  double sum = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(at[i] >= 0 && at[i] < 1) << i;
    sum += static_cast<double>(at[i]);
  }
  EXPECT_NEAR(sum / static_cast<double>(kCount), 0.5, 0.01);
  EXPECT_EQ(at[kCount - 1], at[(std::int64_t{1} << 19) + 2]);
}

}  // namespace
}  // namespace lockstep::nn

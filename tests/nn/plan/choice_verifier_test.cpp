// Tests the verifier, which compares a library's result with the result of lockstep's own kernel. The verifier must
// accept right libraries, and refuse wrong libraries with an error that names them.
#include <lockstep/nn/plan/choice_verifier.hpp>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

/// A plan that claims to be a library's. It runs lockstep's own kernel and then spoils the output.
class Spoiled final : public ops::ConvPlan {
 public:
  enum class Fault { none, one_element, after_output, before_workspace, after_workspace, reads_workspace };
  Spoiled(Context& context, const ops::ConvDesc& desc, ops::ConvPass pass, Fault fault)
      : ConvPlan(context.device(), desc, pass),
        own_(ops::plan_conv2d(context, desc, pass, "reference")),
        fault_(fault) {}
  [[nodiscard]] std::size_t workspace_bytes() const override { return own_->workspace_bytes() + 64; }
  [[nodiscard]] bool deterministic() const override { return true; }
  [[nodiscard]] std::string choice() const override { return "other:fast"; }
  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& out,
           const TensorView& workspace) const override {
    own_->run(context, a, b, bias, out, workspace);
    auto* const y = static_cast<float*>(out.data);
    auto* const scratch = static_cast<std::byte*>(workspace.data);
    switch (fault_) {
      case Fault::none:
        break;
      case Fault::one_element:
        y[out.numel() - 1] += 0.01F;
        break;
      case Fault::after_output:
        y[out.numel()] = 0;
        break;
      case Fault::before_workspace:
        scratch[-256] = std::byte{1};
        break;
      case Fault::after_workspace:
        scratch[workspace_bytes() + 1] = std::byte{1};
        break;
      case Fault::reads_workspace:
        y[0] += static_cast<float*>(workspace.data)[workspace_bytes() / 4 - 1];
        break;
    }
  }

 private:
  std::unique_ptr<ops::ConvPlan> own_;
  Fault fault_;
};

constexpr ops::ConvDesc kDesc{.batch = 1, .in_channels = 3, .out_channels = 4, .in_size = {5, 6}, .kernel = {3, 3}};

class ChoiceVerifierFaults : public ::testing::TestWithParam<std::pair<Spoiled::Fault, const char*>> {};
INSTANTIATE_TEST_SUITE_P(
    Faults, ChoiceVerifierFaults,
    ::testing::Values(std::pair{Spoiled::Fault::one_element, "element 47 is "},
                      std::pair{Spoiled::Fault::after_output, "the first 0 bytes after the end of its output"},
                      std::pair{Spoiled::Fault::before_workspace, "before the begin of its workspace"},
                      std::pair{Spoiled::Fault::after_workspace, "the first 1 bytes after the end of its workspace"},
                      std::pair{Spoiled::Fault::reads_workspace, "nan, expected "}));

TEST_P(ChoiceVerifierFaults, IsNamedAndAnotherChoiceIsTaken) {
  const auto& [fault, text] = GetParam();
  CpuContext context({.threads = 1});
  std::vector<std::string> told;
  ChoiceVerifier verifier([&](const std::string& line) { told.push_back(line); });
  const auto wrong = std::make_shared<const Spoiled>(context, kDesc, ops::ConvPass::forward, fault);
  const std::shared_ptr<const ops::ConvPlan> taken = verifier.checked(context, wrong);
  EXPECT_EQ(taken->choice(), ops::conv2d_choices(context, kDesc, ops::ConvPass::forward).front());
  ASSERT_EQ(verifier.refused().size(), 1U);
  const std::string& line = verifier.refused().front();
  EXPECT_TRUE(line.starts_with("conv2d forward f32 batch 1 in 5x6x3 kernel 3x3x4")) << line;
  EXPECT_NE(line.find(": other:fast (other:fast, 1 threads): "), std::string::npos) << line;
  EXPECT_NE(line.find(text), std::string::npos) << line;
  EXPECT_EQ(told, verifier.refused());
}

TEST(ChoiceVerifier, ARightPlanStaysAndIsComparedOnce) {
  CpuContext context({.threads = 1});
  ChoiceVerifier verifier;
  const auto right = std::make_shared<const Spoiled>(context, kDesc, ops::ConvPass::forward, Spoiled::Fault::none);
  EXPECT_EQ(verifier.checked(context, right), right);
  EXPECT_EQ(verifier.checked(context, right), right);
  EXPECT_EQ(verifier.compared(), 1);
  EXPECT_TRUE(verifier.refused().empty());
  const std::shared_ptr<const ops::ConvPlan> own =
      ops::plan_conv2d(context, kDesc, ops::ConvPass::forward, "reference");
  EXPECT_EQ(verifier.checked(context, own), own);
  EXPECT_EQ(verifier.compared(), 1) << "our own kernel is not compared with itself";
}

TEST(ChoiceVerifier, PlansOfATrainingStepGoThroughIt) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CpuContext context({.threads = 2});
    const Model model = cifar_resnet(20, 5, 16, 16).reading(InputKind::values);
    const MicrobatchPlans expected(context, model, 6, 2, {.dtype = dtype});
    const auto verifier = std::make_shared<ChoiceVerifier>();
    const MicrobatchPlans plans(context, model, 6, 2, {.dtype = dtype, .verifier = verifier});
    EXPECT_EQ(plans.choices(), expected.choices()) << "what is right stays";
    EXPECT_TRUE(verifier->refused().empty()) << verifier->refused().front();
    bool libraries = false;
    for (const auto& [key, choice] : plans.choices()) {
      libraries = libraries || !choice.starts_with("reference");
    }
    EXPECT_EQ(verifier->compared() > 0, libraries);
  }
}

TEST(ChoiceVerifier, TheEnvironmentAsksForOne) {
  const auto with = [](const char* value) {
    if (value == nullptr) {
      unsetenv("LOCKSTEP_VERIFY");
    } else {
      setenv("LOCKSTEP_VERIFY", value, 1);
    }
    return ChoiceVerifier::from_environment() != nullptr;
  };
  EXPECT_FALSE(with(nullptr));
  EXPECT_FALSE(with(""));
  EXPECT_FALSE(with("0"));
  EXPECT_TRUE(with("1"));
  EXPECT_EQ(testing::error_of<UsageError>([&] { (void)with("yes"); }), "LOCKSTEP_VERIFY is 'yes', expected 0 or 1");
  unsetenv("LOCKSTEP_VERIFY");
}

}  // namespace
}  // namespace lockstep::nn

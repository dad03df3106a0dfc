// Tests calls that cuBLASLt refuses: the heuristics themselves, an algorithm that they guessed, and a setting of an
// algorithm. A refusal may only remove a choice; it must not fail the run.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "control.hpp"
#include "cublaslt_control.hpp"
#include "tests/support/error_of.hpp"

// Only nvcc can compile the real kernels. So this program contains the provider `cublaslt`, a dummy of the provider
// `cuda`, and dummies of the ops that cuBLASLt's provider calls.
namespace lockstep::ops {
namespace {

class OwnKernels final : public MatmulPlan {
 public:
  OwnKernels(Device device, const MatmulDesc& desc) : MatmulPlan(device, desc) {}
  [[nodiscard]] std::size_t workspace_bytes() const override { return 0; }
  [[nodiscard]] bool deterministic() const override { return true; }
  [[nodiscard]] std::string choice() const override { return "cuda"; }
  void run(Context& /*context*/, const TensorView& /*a*/, const TensorView& /*b*/, const TensorView& /*bias*/,
           const TensorView& /*c*/, const TensorView& /*workspace*/) const override {
    throw StateError("nothing is computed here");
  }
};

}  // namespace

std::span<const MatmulProvider> matmul_providers() {
  static const MatmulProvider kTable[] = {
      cublaslt::kMatmul,
      {"cuda", DeviceKind::cuda, [](Context&, const MatmulDesc&) { return std::vector<std::string>{"cuda"}; },
       [](Context& context, const MatmulDesc& desc, const std::string&) -> std::unique_ptr<MatmulPlan> {
         return std::make_unique<OwnKernels>(context.device(), desc);
       }}};
  return kTable;
}

void strided_copy(Context& /*context*/, const TensorView& /*src*/, const TensorView& /*dst*/) {
  throw StateError("nothing is computed here");
}

std::string_view name_of(Activation activation) {
  return activation == Activation::identity ? "identity" : "another activation";
}

}  // namespace lockstep::ops

namespace lockstep {
namespace {

using Texts = std::vector<std::string>;

class CublasLtStandin : public ::testing::Test {
 protected:
  void SetUp() override {
    standin::reset();
    context_ = std::make_unique<CudaContext>(Device::cuda(0));
    desc_.m = desc_.n = desc_.k = 16;
  }
  void TearDown() override {
    context_.reset();
    EXPECT_EQ(standin::violations(), Texts{});
    EXPECT_EQ(standin::leaks(), Texts{});
  }
  [[nodiscard]] Texts choices() { return ops::matmul_choices(*context_, desc_); }
  [[nodiscard]] std::string planned(const std::string& choice) {
    return ops::plan_matmul(*context_, desc_, choice)->choice();
  }

  std::unique_ptr<CudaContext> context_;
  ops::MatmulDesc desc_;
};

TEST_F(CublasLtStandin, AGuessThatIsRefusedLeavesTheOthers) {
  cublaslt_standin::script({{.id = 1, .checked = CUBLAS_STATUS_INVALID_VALUE},
                            {.id = 2, .checked = CUBLAS_STATUS_INTERNAL_ERROR},
                            {.id = 3, .described = CUBLAS_STATUS_INVALID_VALUE},
                            {.id = 4, .checked = CUBLAS_STATUS_NOT_SUPPORTED},
                            {.id = 5, .stages = 9}});
  EXPECT_EQ(choices(), (Texts{"cublaslt:5-0-9-0-0-0-0-0-0", "cuda"}));
  EXPECT_EQ(planned(""), "cublaslt:5-0-9-0-0-0-0-0-0");
  EXPECT_EQ(planned("cublaslt"), "cublaslt:5-0-9-0-0-0-0-0-0");
}

TEST_F(CublasLtStandin, AllGuessesRefusedLeaveOurKernels) {
  cublaslt_standin::script({{.id = 1, .checked = CUBLAS_STATUS_INVALID_VALUE}});
  EXPECT_EQ(choices(), Texts{"cuda"});
  EXPECT_EQ(planned(""), "cuda");
  EXPECT_THROW((void)planned("cublaslt"), UnsupportedError);
  EXPECT_THROW((void)planned("cublaslt:1-0-0-0-0-0-0-0-0"), UnsupportedError);
}

TEST_F(CublasLtStandin, HeuristicsThatFailAreSaidAndLeaveOurKernels) {
  cublaslt_standin::script({{.id = 1}}, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(choices(), Texts{"cuda"});
  desc_.m *= 2;  // a new product, because the answers for known products are cached
  cublaslt_standin::script({{.id = 1}}, CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(choices(), (Texts{"cublaslt", "cuda"})) << "the first one to say why it cannot be planned";
  EXPECT_EQ(planned(""), "cuda");
  testing::expect_error<UnsupportedError>([&] { (void)planned("cublaslt"); },
                                          {"cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INTERNAL_ERROR"});
}

TEST_F(CublasLtStandin, AnAlgorithmThatSettingsDoNotMakeIsKeptAsItIs) {
  cublaslt_standin::script({{.id = 6, .stages = 3}, {.id = 7, .hidden = 0xabc, .stages = 3}});
  const Texts all = choices();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0], "cublaslt:6-0-3-0-0-0-0-0-0");
  EXPECT_EQ(all[1],
            "cublaslt:7-0-3-0-0-0-0-0-0:0000000000000007000000000000000000000000000000030000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000abc");
  EXPECT_EQ(planned(all[1]), all[1]);
  EXPECT_EQ(cublaslt_standin::checked(), (std::array<std::uint64_t, 8>{7, 0, 3, 0, 0, 0, 0, 0xabc}));
  EXPECT_EQ(planned(all[0]), all[0]);
  EXPECT_EQ(cublaslt_standin::checked(), (std::array<std::uint64_t, 8>{6, 0, 3, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace lockstep

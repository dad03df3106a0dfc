// Tests the convolutions of the GPU libraries. CudaCases (cuda_cases_test.cpp) tests lockstep's own kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ConvDesc;
using ops::ConvPass;

using CudaConv2d = CudaTest;

/// Fixture of tests with one instance for each pair of convolution and pass, so that GoogleTest's shards can divide the
/// instances.
class CudaConv2dPasses : public CudaTest, public ::testing::WithParamInterface<std::size_t> {};

/// Returns at most `most` evenly spaced choices, including the first and the last. split = true: takes only the choices
/// that begin with cudnn:split. With these choices cuDNN does only the convolution, and kernels of lockstep add the
/// bias or accumulate. split = false: takes only the other choices.
std::vector<std::string> a_few(const std::vector<std::string>& choices, bool split, std::size_t most) {
  std::vector<std::string> all;
  for (const std::string& choice : choices) {
    if (choice.starts_with("cudnn:split") == split) {
      all.push_back(choice);
    }
  }
  std::vector<std::string> few;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i) {
    few.push_back(all.size() <= most ? all[i] : all[i * (all.size() - 1) / (most - 1)]);
  }
  return few;
}

TEST_P(CudaConv2dPasses, SomeChoicesOfALibraryMatchTheHost) {
  const auto of_libraries = [&](const ConvDesc& d, ConvPass pass) {
    std::vector<std::string> choices = ops::conv2d_choices(cuda(), d, pass);
    EXPECT_EQ(choices.back(), "cuda");  // lockstep's own kernels come last, after the libraries
    choices.pop_back();
    std::vector<std::string> few = a_few(choices, false, 3);
    for (const std::string& choice : a_few(choices, true, 2)) {
      few.push_back(choice);
    }
    return few;
  };
  for (const DeviceCase& item : conv2d_device_cases(GetParam(), of_libraries)) {
    compare(item.device, cuda(), item.host, cpu(), item.tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, CudaConv2dPasses, ::testing::Range(std::size_t{0}, conv2d_device_passes()));

TEST_F(CudaConv2d, OurOwnKernelsRefuseByName) {
  ConvDesc d = square(1, 8, 16, 16, 3, 1, 1);
  EXPECT_EQ(ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda")->choice(), "cuda");
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda:no_such_algorithm"), UsageError);
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "reference"), UnsupportedError);
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda:norm"), UnsupportedError);
  ConvDesc normed = d;
  normed.norm.wanted = true;
  EXPECT_EQ(ops::conv2d_choices(cuda(), normed, ConvPass::forward).back(), "cuda:norm");
  EXPECT_TRUE(ops::plan_conv2d(cuda(), normed, ConvPass::forward, "cuda:norm")->serves_norm());
  EXPECT_FALSE(ops::plan_conv2d(cuda(), normed, ConvPass::forward, "cuda")->serves_norm());
  d.dtype = DType::f64;
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda"), UnsupportedError);
  EXPECT_TRUE(ops::conv2d_choices(cuda(), d, ConvPass::forward).empty());
}

TEST_F(CudaConv2d, ALongSumIsSplitTheSameWayEachTime) {
  ConvDesc d;
  d.spatial_rank = 1;
  d.in_size = {1101, 1, 1};
  const auto plan = ops::plan_conv2d(cuda(), d, ConvPass::backward_weights, "cuda");
  EXPECT_TRUE(plan->deterministic());
  EXPECT_EQ(plan->workspace_bytes(), 2 * sizeof(float));  // two partial sums
  expect_repeatable(conv2d_case("split", d, ConvPass::backward_weights, "cuda"), cuda());
}

}  // namespace
}  // namespace lockstep::testing

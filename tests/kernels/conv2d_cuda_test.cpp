// Convolutions on a GPU beyond the cases that all ops share, which run our own kernels: those of the libraries.
#include <gtest/gtest.h>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep {
namespace {

using ops::ConvDesc;
using ops::ConvPass;

using CudaConv2d = testing::CudaTest;

TEST_F(CudaConv2d, EveryChoiceOfALibraryMatchesTheHost) {
  const auto of_libraries = [&](const ConvDesc& d, ConvPass pass) {
    std::vector<std::string> choices = ops::conv2d_choices(cuda(), d, pass);
    EXPECT_EQ(choices.back(), "cuda");  // behind whatever a library has
    choices.pop_back();
    return choices;
  };
  for (const testing::DeviceCase& item : testing::conv2d_device_cases(of_libraries)) {
    testing::compare(item.device, cuda(), item.host, cpu(), item.tolerance);
  }
}

TEST_F(CudaConv2d, OurOwnKernelsRefuseByName) {
  ConvDesc d = testing::square(1, 8, 16, 16, 3, 1, 1);
  EXPECT_EQ(ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda")->choice(), "cuda");
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "cuda:no_such_algorithm"), UsageError);
  EXPECT_THROW((void)ops::plan_conv2d(cuda(), d, ConvPass::forward, "reference"), UnsupportedError);
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
  EXPECT_EQ(plan->workspace_bytes(), 2 * sizeof(float));  // two parts of one number
  testing::expect_repeatable(testing::conv2d_case("split", d, ConvPass::backward_weights, "cuda"), cuda());
}

}  // namespace
}  // namespace lockstep

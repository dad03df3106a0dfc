// Tests the matrix products of the GPU libraries. CudaCases (cuda_cases_test.cpp) tests lockstep's own kernels.
#include <gtest/gtest.h>

#include "tests/kernels/matmul_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::MatmulDesc;

using CudaMatmul = CudaTest;

TEST_F(CudaMatmul, EveryChoiceOfALibraryMatchesTheHost) {
  const auto of_libraries = [&](const MatmulDesc& d) {
    std::vector<std::string> choices = ops::matmul_choices(cuda(), d);
    EXPECT_EQ(choices.back(), "cuda");  // lockstep's own kernels come last, after the libraries
    choices.pop_back();
    return choices;
  };
  for (const DeviceCase& item : matmul_device_cases(of_libraries)) {
    compare(item.device, cuda(), item.host, cpu(), item.tolerance);
  }
}

TEST_F(CudaMatmul, OurOwnKernelsRefuseByName) {
  MatmulDesc d;
  EXPECT_EQ(ops::plan_matmul(cuda(), d, "cuda")->choice(), "cuda");
  EXPECT_THROW((void)ops::plan_matmul(cuda(), d, "cuda:no_such_algorithm"), UsageError);
  EXPECT_THROW((void)ops::plan_matmul(cuda(), d, "reference"), UnsupportedError);
  d.dtype = DType::f64;
  EXPECT_THROW((void)ops::plan_matmul(cuda(), d, "cuda"), UnsupportedError);
  EXPECT_TRUE(ops::matmul_choices(cuda(), d).empty());
}

TEST_F(CudaMatmul, ALongSumIsSplitTheSameWayEachTime) {
  MatmulDesc d;
  d.m = 3;
  d.n = 5;
  d.k = 1023;
  EXPECT_EQ(ops::plan_matmul(cuda(), d, "cuda")->workspace_bytes(), 0U);
  d.k = 1101;
  const auto plan = ops::plan_matmul(cuda(), d, "cuda");
  EXPECT_TRUE(plan->deterministic());
  EXPECT_EQ(plan->workspace_bytes(), 2 * 15 * sizeof(float));  // two parts
  expect_repeatable(matmul_case(d, "cuda"), cuda());
}

}  // namespace
}  // namespace lockstep::testing

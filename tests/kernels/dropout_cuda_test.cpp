// Tests dropout on a GPU: extreme ids and epochs, the same decisions in every type, the order of samples in the batch.
// cuda_cases_test.cpp runs the test cases that every op has.
#include "tests/kernels/dropout_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaDropout = CudaTest;

TEST_F(CudaDropout, AnyIdAndEpoch) {
  for (const double epoch : {0.0, -2.0, 9e15}) {
    for (const std::int64_t extent : {7, 16}) {
      OpCase item = dropout_case({4, extent}, DType::f32);
      item.inputs[0].start = values({-1, 9e15, -9e15, 1e10});
      item.inputs[1].start = constant(epoch);
      compare(item, cpu(), item, cuda(), 0);
    }
  }
}

TEST_F(CudaDropout, TheSameDecisionsInEveryType) {
  for (const std::int64_t extent : {33, 40}) {
    std::vector<double> first;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const CheckedRun instance(dropout_case({9, extent}, dtype), cuda());
      std::vector<double> kept = instance.output(0).values();
      for (double& value : kept) {
        value = value == 0 ? 0 : 1;
      }
      first = dtype == DType::f32 ? kept : first;
      EXPECT_EQ(kept, first) << dtype;
    }
  }
}

TEST_F(CudaDropout, DoesNotDependOnThePlaceInTheBatch) {
  const auto rows = [&](std::vector<double> ids) {
    OpCase item = dropout_case({static_cast<std::int64_t>(ids.size()), 24}, DType::bf16);
    item.inputs[0].start = values(ids);
    item.inputs[2].start = constant(1);
    const CheckedRun instance(item, cuda());
    return instance.output(0).values();
  };
  const std::vector<double> together = rows({3, 4, 5});
  EXPECT_EQ(rows({5}), std::vector<double>(together.begin() + 48, together.end()));
  EXPECT_NE(rows({5}), std::vector<double>(together.begin() + 24, together.begin() + 48));
}

}  // namespace
}  // namespace lockstep::testing

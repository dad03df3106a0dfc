// Compares every op that has CUDA kernels with the host, on the OP_device_cases() of tests/kernels/OP_cases.hpp. For
// each op one test, Ops/CudaCases.MatchTheHost/OP, and one on views that are not aligned,
// MatchTheHostOffA16ByteBoundary/OP.
#include <ostream>
#include <string>
#include <vector>

#include "cuda_op_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {

void PrintTo(const CudaOp& op, std::ostream* out) {
  *out << op.name;
}

namespace {

class CudaCases : public CudaTest, public ::testing::WithParamInterface<CudaOp> {};

TEST_P(CudaCases, MatchTheHost) {
  const std::vector<DeviceCase> cases = GetParam().cases();
  ASSERT_FALSE(cases.empty());
  for (const DeviceCase& item : cases) {
    compare(item.device, cuda(), item.host, cpu(), item.tolerance);
    if (HasFatalFailure()) {
      return;
    }
  }
}

/// Tests the paths that take one element at a time where 16-byte accesses are not allowed.
TEST_P(CudaCases, MatchTheHostOffA16ByteBoundary) {
  for (const DeviceCase& item : GetParam().cases()) {
    if (!item.device.prepare) {
      compare(off_boundary(item.device), cuda(), off_boundary(item.host), cpu(), item.tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaCases, ::testing::ValuesIn(cuda_ops()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace lockstep::testing

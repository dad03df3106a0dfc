// Compares every op that has CUDA kernels with the host, on the test cases of OP_device_cases() in
// tests/kernels/OP_cases.hpp. Each op has two tests: Ops/CudaCases.MatchTheHost/OP, and
// MatchTheHostOffA16ByteBoundary/OP on unaligned views.
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

/// On views that begin off a 16-byte boundary, the kernels must access one element at a time, and must still match the
/// host.
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

#include <lockstep/kernels/dispatch.hpp>

#include <gtest/gtest.h>

#include <string>

#if LOCKSTEP_CUDA_STANDIN
#include "control.hpp"
#endif

// These ops are defined outside of lockstep, as in a host program. dispatch() must work in files that define none of
// lockstep's macros.
namespace outside {
namespace backend {

void where(lockstep::CpuContext&, std::string* answer) {
  *answer = "cpu";
}
void where(lockstep::CudaContext&, std::string* answer) {
  *answer = "cuda";
}
void only_cpu(lockstep::CpuContext&, std::string* answer) {
  *answer = "cpu";
}
void only_cuda(lockstep::CudaContext&, std::string* answer) {
  *answer = "cuda";
}

}  // namespace backend

std::string where(lockstep::Context& context) {
  std::string answer;
  std::string* out = &answer;
  lockstep::ops::dispatch(context, "where",
                          [out](auto& c) -> decltype(backend::where(c, out)) { backend::where(c, out); });
  context.synchronize();
  return answer;
}
std::string only_cpu(lockstep::Context& context) {
  std::string answer;
  std::string* out = &answer;
  lockstep::ops::dispatch(context, "only_cpu",
                          [out](auto& c) -> decltype(backend::only_cpu(c, out)) { backend::only_cpu(c, out); });
  context.synchronize();
  return answer;
}
std::string only_cuda(lockstep::Context& context) {
  std::string answer;
  std::string* out = &answer;
  lockstep::ops::dispatch(context, "only_cuda",
                          [out](auto& c) -> decltype(backend::only_cuda(c, out)) { backend::only_cuda(c, out); });
  context.synchronize();
  return answer;
}

}  // namespace outside

namespace lockstep::ops {
namespace {

TEST(Dispatch, ReachesTheHostOverload) {
  CpuContext context;
  EXPECT_EQ(outside::where(context), "cpu");
  EXPECT_EQ(outside::only_cpu(context), "cpu");
  EXPECT_THROW(outside::only_cuda(context), UnsupportedError);
}

TEST(Dispatch, ReachesTheCudaOverload) {
#if LOCKSTEP_CUDA_STANDIN
  standin::reset();
#endif
  if (num_gpus() == 0) {
    GTEST_SKIP() << "needs a CUDA device, this machine has none";
  }
  CudaContext context(Device::cuda(0));
  EXPECT_EQ(outside::where(context), "cuda");
  EXPECT_EQ(outside::only_cuda(context), "cuda");
  EXPECT_THROW(outside::only_cpu(context), UnsupportedError);
}

}  // namespace
}  // namespace lockstep::ops

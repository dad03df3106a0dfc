// If cuDNN fails for one engine or for one list of engines, lockstep must drop only these engines. The other engines
// must stay usable, whatever status cuDNN returned.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/cudnn/plan_cache.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/kernels/cudnn_h100.hpp"
#include "tests/kernels/failing_cudnn.hpp"

namespace lockstep::ops::cudnn {
namespace {

using testing::failing_cudnn_fail;

class CudnnFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    failing_cudnn_fail(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 0, CUDNN_STATUS_SUCCESS);
    if (!unusable().empty()) {
      GTEST_SKIP() << unusable();
    }
    properties_ = std::make_unique<Descriptor>(describe_device(testing::kH100));
    desc_ = testing::square(64, 14, 256, 256, 3, 1, 1);
    desc_.dtype = DType::bf16;
  }
  [[nodiscard]] Target target() const { return {nullptr, properties_.get()}; }
  std::vector<Algorithm> listed() {
    refused_.clear();
    return algorithms(target(), desc_, ConvPass::forward, Engines::all, &refused_);
  }

  ConvDesc desc_;
  std::vector<std::string> refused_;

 private:
  std::unique_ptr<Descriptor> properties_;
};

TEST_F(CudnnFailures, AnEngineThatFailsIsLeftOutAndSaid) {
  const std::vector<Algorithm> all = listed();
  ASSERT_GE(all.size(), 4U);
  EXPECT_TRUE(refused_.empty());
  for (const auto& [status, text] : {std::pair(CUDNN_STATUS_BAD_PARAM, "CUDNN_STATUS_BAD_PARAM"),
                                     {CUDNN_STATUS_INTERNAL_ERROR, "CUDNN_STATUS_INTERNAL_ERROR"},
                                     {CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "COMPILATION_FAILED"}}) {
    failing_cudnn_fail(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1, status);
    const std::vector<Algorithm> rest = listed();
    ASSERT_FALSE(rest.empty()) << text;
    EXPECT_EQ(rest.front(), all.at(1)) << text;
    ASSERT_EQ(refused_.size(), 1U) << text;
    EXPECT_NE(refused_[0].find(text), std::string::npos) << refused_[0];
  }
}

TEST_F(CudnnFailures, AListThatFailsLeavesTheOthers) {
  const std::vector<Algorithm> all = listed();
  failing_cudnn_fail(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 1, CUDNN_STATUS_INTERNAL_ERROR);
  const std::vector<Algorithm> rest = listed();
  EXPECT_FALSE(rest.empty());
  EXPECT_EQ(refused_.size(), 1U);
  failing_cudnn_fail(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 1, CUDNN_STATUS_BAD_PARAM);
  EXPECT_TRUE(listed().empty()) << "without a bias there is one graph";
  EXPECT_EQ(refused_.size(), 1U);
}

TEST_F(CudnnFailures, APlanThatFailsIsAskedForOnceUnlessMemoryRanOut) {
  const Algorithm first = listed().at(0);
  const auto said = [&](PlanCache& cache) {
    try {
      (void)cache.plan(target(), desc_, ConvPass::forward, first);
    } catch (const UnsupportedError& error) {
      return concat("unsupported: ", error.what());
    } catch (const OutOfMemory& error) {
      return concat("memory: ", error.what());
    } catch (const Error& error) {
      return concat("error: ", error.what());
    }
    return std::string("planned");
  };
  for (const auto& [status, kind] :
       {std::pair(CUDNN_STATUS_INTERNAL_ERROR, "error: "), {CUDNN_STATUS_NOT_SUPPORTED, "unsupported: "}}) {
    PlanCache cache;
    failing_cudnn_fail(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 1, status);
    const std::string text = said(cache);
    EXPECT_TRUE(text.starts_with(kind)) << text;
    EXPECT_EQ(said(cache), text);
    EXPECT_EQ(testing::failing_cudnn_finalised(), 1);
  }
  PlanCache cache;
  failing_cudnn_fail(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 1, CUDNN_STATUS_ALLOC_FAILED);
  EXPECT_TRUE(said(cache).starts_with("memory: "));
  EXPECT_EQ(said(cache), "planned");
  // If prepare() makes the plans in threads and runs out of memory, the failure must not be cached.
  PlanCache ahead;
  failing_cudnn_fail(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 1, CUDNN_STATUS_ALLOC_FAILED);
  const std::vector<Target> two{target(), target()};
  const std::vector<PlanCache::Wanted> calls{{desc_, ConvPass::forward}};
  ahead.prepare(two, calls, Engines::all);
  for (const Algorithm& algorithm : ahead.list(target(), desc_, ConvPass::forward, Engines::all).algorithms) {
    EXPECT_NE(ahead.plan(target(), desc_, ConvPass::forward, algorithm), nullptr) << algorithm.text();
  }
}

}  // namespace
}  // namespace lockstep::ops::cudnn

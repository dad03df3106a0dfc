// Counts the calls of cuDNN when a ResNet-50 is planned and tuned, for a GPU that is described and not present.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "tests/nn/plan/cudnn_calls.hpp"

namespace lockstep::nn {
namespace {

using ops::ConvCall;
using ops::ConvPass;
using ops::Engines;
using ops::cudnn::Algorithm;
using ops::cudnn::PlanCache;
using ops::cudnn::Target;

class CudnnPlanning : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::no_cudnn_here(LOCKSTEP_DRIVER_STUB); !why.empty()) {
      GTEST_SKIP() << why;
    }
    properties_ = std::make_unique<ops::cudnn::Descriptor>(ops::cudnn::describe_device(testing::kH100));
  }
  /// Returns one target for each thread.
  [[nodiscard]] std::vector<Target> targets(int count) const {
    return std::vector<Target>(static_cast<std::size_t>(count), Target{nullptr, properties_.get()});
  }

 private:
  std::unique_ptr<ops::cudnn::Descriptor> properties_;
};

TEST_F(CudnnPlanning, AFirstRunAsksEachQuestionOnceAndALaterOneListsNothing) {
  const std::vector<ConvCall> calls = testing::resnet50_calls(64, testing::Of::training_and_evaluation);
  const std::vector<Target> two = targets(2);
  PlanCache cache;
  testing::Plans held;
  const testing::Chosen chosen = testing::tune(cache, two, calls, Engines::precompiled, held);
  std::set<std::string> plans;
  std::set<std::string> lists;
  for (const ConvCall& call : testing::distinct(calls)) {
    ConvCall bare = call;
    bare.desc.norm = {};
    lists.insert(describe(call));
    for (const Algorithm& algorithm : ops::cudnn::algorithms(two.front(), call.desc, call.pass, Engines::precompiled)) {
      EXPECT_NE(algorithm.form, ops::cudnn::Form::norm);
      plans.insert(describe(bare) + algorithm.text());
    }
  }
  EXPECT_EQ(cache.lists_made(), static_cast<int>(lists.size()));
  EXPECT_EQ(cache.plans_made(), static_cast<int>(plans.size()));
  EXPECT_EQ(testing::plan_all(cache, two.front(), calls, chosen).size(), calls.size());
  EXPECT_EQ(cache.lists_made(), static_cast<int>(lists.size()));
  EXPECT_EQ(cache.plans_made(), static_cast<int>(plans.size())) << "the trainer finds all";

  const std::vector<ConvCall> training = testing::resnet50_calls(64, testing::Of::training);
  EXPECT_EQ(training.size(), 3U * 53 - 1) << "the images get no gradient";
  // A second run reads its choices from a file. It prepares the plans of these choices, and then plans each layer. No
  // further plan may be made. The test leaves out the calls of the evaluation.
  std::vector<PlanCache::Wanted> stored;
  for (const ConvCall& call : training) {
    stored.push_back({call.desc, call.pass, chosen.at(describe(call))});
  }
  PlanCache later;
  later.prepare(two, stored, Engines::all);
  EXPECT_EQ(later.lists_made(), 0);
  const int prepared = later.plans_made();
  EXPECT_GT(prepared, 50);
  EXPECT_LE(prepared, 70);
  EXPECT_EQ(testing::plan_all(later, two.front(), training, chosen).size(), training.size());
  EXPECT_EQ(later.plans_made(), prepared);
  EXPECT_EQ(later.lists_made(), 0);
}

TEST_F(CudnnPlanning, ThreadsFindWhatOneFinds) {
  const std::vector<ConvCall> training = testing::resnet50_calls(64, testing::Of::training);
  ConvCall beside_norm = training.front();
  for (const ConvCall& call : training) {
    if (call.desc.norm.wanted && call.pass == ConvPass::forward && call.desc.kernel[0] == 1) {
      beside_norm = call;
    }
  }
  ASSERT_TRUE(beside_norm.desc.norm.wanted);
  ConvCall circular = beside_norm;  // cuDNN does not compute circular padding
  circular.desc.norm = {};
  circular.desc.pad_mode = ops::PadMode::circular;
  const std::vector<PlanCache::Wanted> calls{{beside_norm.desc, beside_norm.pass}, {circular.desc, circular.pass}};
  const std::vector<Target> three = targets(3);
  PlanCache cache;
  cache.prepare(three, calls, Engines::all);
  const std::vector<Algorithm> all = ops::cudnn::algorithms(three.front(), beside_norm.desc, beside_norm.pass);
  EXPECT_EQ(cache.list(three.front(), beside_norm.desc, beside_norm.pass, Engines::all).algorithms, all);
  EXPECT_EQ(cache.plans_made(), static_cast<int>(all.size()));
  int serving = 0;
  for (const Algorithm& algorithm : all) {
    std::vector<std::string> said;
    for (int i = 0; i < 2; ++i) {  // the second refusal has the same text
      try {
        EXPECT_NE(cache.plan(three.front(), beside_norm.desc, beside_norm.pass, algorithm), nullptr);
        said.emplace_back("planned");
      } catch (const Error& error) {
        said.emplace_back(error.what());
      }
    }
    EXPECT_EQ(said[0], said[1]);
    serving += algorithm.form == ops::cudnn::Form::norm ? 1 : 0;
  }
  EXPECT_GT(serving, 0);
  EXPECT_EQ(cache.plans_made(), static_cast<int>(all.size())) << "each was made by a thread";
  // Later calls of the cache drop plans that no caller holds. Plans that a caller holds must stay.
  const auto held = cache.plan(three.front(), beside_norm.desc, beside_norm.pass, all.front());
  cache.prepare(three, {}, Engines::all);
  EXPECT_EQ(cache.plan(three.front(), beside_norm.desc, beside_norm.pass, all.front()), held);
  EXPECT_EQ(cache.plans_made(), static_cast<int>(all.size()));
  EXPECT_NE(cache.plan(three.front(), beside_norm.desc, beside_norm.pass, all.at(1)), nullptr);
  EXPECT_EQ(cache.plans_made(), static_cast<int>(all.size()) + 1);
}

}  // namespace
}  // namespace lockstep::nn

// Tests the cuDNN graphs of convolutions and the engines that cuDNN offers for them. The plans are made for a GPU that
// is only described, so no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/cudnn/conv_graph.hpp>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/kernels/conv2d_networks.hpp"
#include "tests/kernels/cudnn_h100.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::ops::cudnn {
namespace {

using Extents = std::vector<std::int64_t>;
using testing::ConvCase;
using testing::kConvPasses;
using testing::square;

struct Type {
  DType dtype;
  bool tf32;
};
constexpr Type kTypes[] = {{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::f16, false}};

bool has_split(const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return text.starts_with("split:eng"); });
}

ConvDesc with(const ConvDesc& desc, const Type& type, GradMode mode = GradMode::overwrite) {
  ConvDesc d = desc;
  d.dtype = type.dtype;
  d.tf32 = type.tf32;
  d.grad_mode = mode;
  return d;
}

// ---- As data

TEST(CudnnGraph, TensorsAreInLogicalOrderWithStridesOfChannelsLast) {
  ConvDesc d = square(2, 9, 6, 8, 3, 2, 1);
  d.groups = 2;
  d.dtype = DType::bf16;
  d.bias = true;
  d.pad_after = {0, 3, 0};
  const ConvGraph forward = describe(d, ConvPass::forward, Form::fused);
  EXPECT_EQ(forward.x.dims, (Extents{2, 6, 9, 9}));
  EXPECT_EQ(forward.x.strides, (Extents{486, 1, 54, 6}));
  EXPECT_EQ(forward.weights.dims, (Extents{8, 3, 3, 3}));
  EXPECT_EQ(forward.weights.strides, (Extents{27, 1, 9, 3}));
  EXPECT_EQ(forward.y.dims, (Extents{2, 8, 4, 6}));
  EXPECT_EQ(forward.y.strides, (Extents{192, 1, 48, 8}));
  ASSERT_TRUE(forward.bias.has_value());
  EXPECT_EQ(forward.bias->dims, (Extents{1, 8, 1, 1}));
  EXPECT_EQ(forward.bias->dtype, DType::f32);
  EXPECT_EQ(forward.pad_before, (Extents{1, 1}));
  EXPECT_EQ(forward.pad_after, (Extents{0, 3}));
  EXPECT_EQ(forward.stride, (Extents{2, 2}));
  EXPECT_EQ(forward.x.uid, Uid::a);
  EXPECT_EQ(forward.weights.uid, Uid::b);
  EXPECT_EQ(forward.y.uid, Uid::out);
  EXPECT_FALSE(describe(d, ConvPass::forward, Form::split).bias.has_value());

  d.grad_mode = GradMode::accumulate;
  const ConvGraph to_data = describe(d, ConvPass::backward_data, Form::fused);
  EXPECT_TRUE(to_data.accumulate);
  EXPECT_FALSE(to_data.bias.has_value());
  EXPECT_EQ(to_data.y.uid, Uid::a);
  EXPECT_EQ(to_data.weights.uid, Uid::b);
  EXPECT_EQ(to_data.x.uid, Uid::out);
  EXPECT_FALSE(describe(d, ConvPass::backward_data, Form::split).accumulate);

  const ConvGraph to_weights = describe(d, ConvPass::backward_weights, Form::fused);
  EXPECT_EQ(to_weights.x.uid, Uid::a);
  EXPECT_EQ(to_weights.y.uid, Uid::b);
  EXPECT_EQ(to_weights.weights.uid, Uid::out);
  EXPECT_EQ(to_weights.weights.dtype, DType::f32);
  EXPECT_FALSE(to_weights.passes_on) << "it accumulates";
  EXPECT_EQ(describe(d, ConvPass::backward_weights, Form::split).weights.dtype, DType::bf16);
  d.grad_mode = GradMode::overwrite;
  EXPECT_TRUE(describe(d, ConvPass::backward_weights, Form::fused).passes_on);
  EXPECT_FALSE(describe(d, ConvPass::backward_weights, Form::split).passes_on);
  d.dtype = DType::f32;
  EXPECT_FALSE(describe(d, ConvPass::backward_weights, Form::fused).passes_on);
}

TEST(CudnnGraph, ImagesOfOneAndThreeAxes) {
  ConvDesc d;
  d.spatial_rank = 1;
  d.batch = 2;
  d.in_channels = 5;
  d.in_size = {13, 1, 1};
  d.kernel = {4, 1, 1};
  d.stride = {3, 1, 1};
  d.dilation = {2, 1, 1};
  d.pad_before = {1, 0, 0};
  const ConvGraph one = describe(d, ConvPass::forward, Form::fused);
  EXPECT_EQ(one.x.dims, (Extents{2, 5, 1, 13}));
  EXPECT_EQ(one.x.strides, (Extents{65, 1, 65, 5}));
  EXPECT_EQ(one.weights.dims, (Extents{1, 5, 1, 4}));
  EXPECT_EQ(one.stride, (Extents{1, 3}));
  EXPECT_EQ(one.dilation, (Extents{1, 2}));
  EXPECT_EQ(one.pad_before, (Extents{0, 1}));
  EXPECT_EQ(one.pad_after, (Extents{0, 0}));
  d.spatial_rank = 3;
  d.in_size = {13, 3, 7};
  const ConvGraph three = describe(d, ConvPass::forward, Form::fused);
  EXPECT_EQ(three.x.dims, (Extents{2, 5, 13, 3, 7}));
  EXPECT_EQ(three.x.strides, (Extents{1365, 1, 105, 35, 5}));
}

TEST(CudnnGraph, WhatASplitPassLeavesToDo) {
  ConvDesc d = square(1, 8, 8, 8, 3, 1, 1);
  for (const ConvPass pass : kConvPasses) {
    EXPECT_FALSE(can_split(d, pass));
  }
  d.bias = true;
  EXPECT_TRUE(can_split(d, ConvPass::forward));
  EXPECT_FALSE(can_split(d, ConvPass::backward_data));
  d.grad_mode = GradMode::accumulate;
  EXPECT_TRUE(can_split(d, ConvPass::backward_data));
  EXPECT_TRUE(can_split(d, ConvPass::backward_weights));
  d.grad_mode = GradMode::overwrite;
  d.dtype = DType::f16;  // the weights' gradient is f32
  EXPECT_TRUE(can_split(d, ConvPass::backward_weights));
  EXPECT_FALSE(can_split(d, ConvPass::backward_data));
}

TEST(CudnnGraph, WhatServesANorm) {
  ConvDesc d = square(2, 9, 8, 16, 3, 1, 1);
  d.dtype = DType::bf16;
  EXPECT_FALSE(conv_may_serve_norm(d, ConvPass::forward)) << "nobody wants it";
  d.norm.wanted = true;
  EXPECT_TRUE(conv_may_serve_norm(d, ConvPass::forward));
  EXPECT_TRUE(conv_may_serve_norm(d, ConvPass::backward_data));
  EXPECT_TRUE(describe(d, ConvPass::forward, Form::norm).norm.wanted);
  EXPECT_FALSE(describe(d, ConvPass::forward, Form::fused).norm.wanted);
  d.stride = {2, 2, 1};
  EXPECT_TRUE(conv_may_serve_norm(d, ConvPass::forward));
  EXPECT_FALSE(conv_may_serve_norm(d, ConvPass::backward_data));
  EXPECT_THROW((void)describe(d, ConvPass::backward_data, Form::norm), UnsupportedError);
  d.in_channels = 12;
  EXPECT_FALSE(conv_may_serve_norm(d, ConvPass::forward));
  d = square(2, 9, 8, 16, 3, 1, 1);
  d.norm.wanted = true;
  EXPECT_FALSE(conv_may_serve_norm(d, ConvPass::forward)) << "f32";
}

TEST(CudnnGraph, RefusesWhatCudnnDoesNotHave) {
  ConvDesc d = square(1, 8, 8, 8, 3, 1, 1);
  d.dtype = DType::f64;
  EXPECT_THROW((void)describe(d, ConvPass::forward, Form::fused), UnsupportedError);
  d.dtype = DType::f32;
  d.pad_mode = PadMode::circular;
  EXPECT_THROW((void)describe(d, ConvPass::forward, Form::fused), UnsupportedError);
}

TEST(CudnnGraph, AlgorithmsAreTheirText) {
  const Algorithm plain{Form::fused, {35, {{2, 1}, {13, -4}}}};
  EXPECT_EQ(plain.text(), "eng35:k2=1,k13=-4");
  EXPECT_EQ(Algorithm::parse("eng35:k2=1,k13=-4"), plain);
  EXPECT_EQ(Algorithm::parse("split:eng0"), (Algorithm{Form::split, {0, {}}}));
  const Algorithm serving{Form::norm, {7, {{2, 1}}}};
  EXPECT_EQ(serving.text(), "norm:eng7:k2=1");
  EXPECT_EQ(Algorithm::parse("norm:eng7:k2=1"), serving);
  for (const char* wrong : {"",
                            "eng",
                            "eng-",
                            "eng 1",
                            "eng01",
                            "eng1:",
                            "eng1:k",
                            "eng1:k2",
                            "eng1:k2=",
                            "eng1:2=1",
                            "eng1:k2=1,",
                            "eng1:k2=1,k2=1",
                            "eng1:k3=1,k2=1",
                            "eng1:k2=1 ",
                            "eng1:k2=+1",
                            "eng1;k2=1",
                            "split:",
                            "split",
                            "split:split:eng1",
                            "norm:split:eng1",
                            "split:norm:eng1",
                            "norm:norm:eng1",
                            "norm:",
                            "eng99999999999999999999",
                            "Eng1"}) {
    EXPECT_EQ(Algorithm::parse(wrong), std::nullopt) << wrong;
  }
}

TEST(CudnnGraph, VersionsThatFit) {
  EXPECT_EQ(version_text(91900), "9.19.0");
  EXPECT_EQ(version_problem(91900, 91900), "");
  EXPECT_EQ(version_problem(91900, 91002), "");
  EXPECT_EQ(version_problem(91002, 91900), "");
  EXPECT_NE(version_problem(91900, 90701).find("9.7.1"), std::string::npos);
  EXPECT_NE(version_problem(91900, 100000).find("10.0.0"), std::string::npos);
}

// ---- Engines that cuDNN offers for an H100

class CudnnH100 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!unusable().empty()) {
      GTEST_SKIP() << unusable();
    }
    properties_ = std::make_unique<Descriptor>(describe_device(testing::kH100));
  }
  [[nodiscard]] Target target() const { return {nullptr, properties_.get()}; }

  /// Returns the texts of the plans that cuDNN offers. Expects that each text parses to the algorithm that it
  /// describes.
  std::vector<std::string> offered(const ConvDesc& d, ConvPass pass, const std::string& name) {
    std::vector<std::string> texts;
    std::size_t nondeterministic = 0;
    for (const Algorithm& algorithm : algorithms(target(), d, pass)) {
      texts.push_back(algorithm.text());
      EXPECT_EQ(Algorithm::parse(texts.back()), algorithm) << name;
      const OperationGraph graph(describe(d, pass, algorithm.form), target());
      const EngineConfig config(graph, target(), algorithm.engine);
      EXPECT_TRUE(allowed(config, d)) << name << ' ' << texts.back();
      const bool may_differ = config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      EXPECT_TRUE(may_differ || nondeterministic == 0) << name << ' ' << texts.back() << " is after one that is not";
      nondeterministic += may_differ ? 1 : 0;
      if (texts.size() == 1) {  // the first plan is the default, so it must work
        Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.descriptor());
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties_);
        EXPECT_NO_THROW(plan.finalize()) << name << ' ' << texts.back();
      }
    }
    EXPECT_TRUE(texts.empty() || nondeterministic < texts.size()) << name << ": the first one is not deterministic";
    nondeterministic_ += nondeterministic;
    EXPECT_LE(texts.size(), 27U);
    std::vector<std::string> sorted = texts;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end()) << name << ": one is there twice";
    return texts;
  }

  std::size_t nondeterministic_ = 0;  ///< number of nondeterministic plans so far

 private:
  std::unique_ptr<Descriptor> properties_;
};

TEST_F(CudnnH100, HasEnginesForEveryPassOfResNet50InEveryType) {
  for (const ConvCase& item : testing::resnet50_cases(64)) {
    for (const Type& type : kTypes) {
      for (const ConvPass pass : kConvPasses) {
        const std::string name =
            concat(item.name, ' ', type.dtype, type.tf32 ? " tf32" : "", " pass ", static_cast<int>(pass));
        const std::vector<std::string> found = offered(with(item.desc, type), pass, name);
        ASSERT_FALSE(found.empty()) << name;
        if (type.dtype != DType::f32 && pass != ConvPass::backward_weights) {
          EXPECT_GE(found.size(), 4U) << name;  // tensor cores allow several engines
        }
      }
    }
  }
  EXPECT_GT(nondeterministic_, 0U) << "then their order was not looked at";
}

TEST_F(CudnnH100, AddsToTheGradientOfTheInputInTheSamePass) {
  for (const ConvCase& item : testing::resnet50_cases(64)) {
    const auto found =
        offered(with(item.desc, {DType::bf16, false}, GradMode::accumulate), ConvPass::backward_data, item.name);
    ASSERT_FALSE(found.empty()) << item.name;
    EXPECT_EQ(found.front().rfind("eng", 0), 0U) << item.name << ": " << found.front();
    EXPECT_TRUE(has_split(found)) << item.name;
  }
}

TEST_F(CudnnH100, HasEnginesForOddShapes) {
  for (const ConvCase& item : testing::conv_cases()) {
    const ConvDesc d = with(item.desc, {DType::bf16, false}, GradMode::accumulate);
    for (const ConvPass pass : kConvPasses) {
      if (d.pad_mode == PadMode::circular) {
        EXPECT_THROW((void)algorithms(target(), d, pass), UnsupportedError);
      } else {
        EXPECT_FALSE(algorithms(target(), d, pass).empty()) << item.name << ' ' << static_cast<int>(pass);
      }
    }
  }
}

TEST_F(CudnnH100, HasEnginesForFieldsAndSeriesInEveryType) {
  for (const int axes : {1, 3}) {
    ConvDesc d = square(4, 24, 3, 32, 3, 2, 1);
    d.spatial_rank = axes;
    d.in_size[2] = 20;
    d.kernel[2] = 3;
    d.stride[2] = 2;
    d.pad_before[2] = d.pad_after[2] = 1;
    for (const Type& type : kTypes) {
      for (const ConvPass pass : kConvPasses) {
        const std::string name =
            concat(axes, " axes, ", type.dtype, type.tf32 ? " tf32" : "", ", pass ", static_cast<int>(pass));
        EXPECT_FALSE(offered(with(d, type), pass, name).empty()) << name;
      }
    }
  }
}

TEST_F(CudnnH100, ABiasOf16BitTensorsIsAddedByOneOfBothWays) {
  ConvDesc d = with(square(64, 56, 64, 64, 3, 1, 1), {DType::bf16, false});
  d.bias = true;
  const auto found = offered(d, ConvPass::forward, "bias");
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(has_split(found));
}

TEST_F(CudnnH100, Tf32IsLeftOutUnlessAskedFor) {
  const ConvDesc d = with(square(64, 14, 256, 256, 3, 1, 1), {DType::f32, true});
  ConvDesc exact = d;
  exact.tf32 = false;
  std::size_t refused = 0;
  for (const Algorithm& algorithm : algorithms(target(), d, ConvPass::forward)) {
    const OperationGraph graph(describe(d, ConvPass::forward, algorithm.form), target());
    const EngineConfig config(graph, target(), algorithm.engine);
    const bool tensor_core = config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    refused += tensor_core ? 1 : 0;
    EXPECT_EQ(allowed(config, exact), !tensor_core) << algorithm.text();
  }
  EXPECT_GT(refused, 0U);
}

TEST_F(CudnnH100, RefusalsSayWhatWasAsked) {
  const ConvDesc d = with(square(1, 8, 8, 8, 3, 1, 1), {DType::bf16, false});
  const OperationGraph graph(describe(d, ConvPass::forward, Form::fused), target());
  EXPECT_THROW(EngineConfig(graph, target(), {100000, {}}), UnsupportedError);
  EXPECT_THROW((void)describe_device("{}"), Error);
  testing::expect_error<Error>([] { check(CUDNN_STATUS_BAD_PARAM, "some_call()"); },
                               {"some_call(): CUDNN_STATUS_BAD_PARAM"});
  EXPECT_THROW(check(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "some_call()"), UnsupportedError);
  EXPECT_THROW(check(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "some_call()"), OutOfMemory);
  EXPECT_NO_THROW(check(CUDNN_STATUS_SUCCESS, "some_call()"));
}

}  // namespace
}  // namespace lockstep::ops::cudnn

// The gradient of whole models in f64 against central differences of the loss, parameter by parameter.
#include <cmath>

#include <gtest/gtest.h>

#include <lockstep/nn/models/resnet.hpp>

#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

using testing::Net;

/// Largest relative error over the parameters: |analytic - numeric| / |numeric| on norms over up to `samples` elements
/// of each. `scale` multiplies the analytic gradient (the negative control).
double gradient_error(Net& net, int samples, double scale = 1) {
  net.run();
  double worst = 0;
  ParameterSet& set = net.parameters();
  std::vector<double> analytic(set.gradients().span<double>().begin(), set.gradients().span<double>().end());
  for (std::size_t p = 0; p < set.parameters().size(); ++p) {
    const ParameterInfo& info = set.parameters()[p];
    const std::int64_t step = std::max<std::int64_t>(1, info.numel / samples);
    double difference = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < info.numel; i += step) {
      double& value = set.values().as<double>()[info.offset + i];
      const double before = value;
      const double h = 1e-6 * std::max(1.0, std::abs(before));
      value = before + h;
      const double up = net.run();
      value = before - h;
      const double down = net.run();
      value = before;
      const double numeric = (up - down) / (2 * h);
      const double a = analytic[static_cast<std::size_t>(info.offset + i)] * scale;
      difference += (a - numeric) * (a - numeric);
      norm += numeric * numeric;
    }
    // A bias before a batch norm has no gradient; what is measured there is rounding against nothing.
    const double error = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3);
    worst = error <= worst ? worst : error;  // NaN becomes the worst
    EXPECT_TRUE(scale != 1 || error <= 1e-5) << info.spec.name << ": " << error;
  }
  return worst;
}

TEST(Gradient, LinearClassifier) {
  Net net(mlp({3, 3, 3}, {}, 3), Mode::train, 5, DType::f64);
  EXPECT_TRUE(gradient_error(net, 40) <= 1e-5);
}

TEST(Gradient, DeepMlp) {
  Net net(mlp({3, 3, 3}, {8, 7, 6}, 3), Mode::train, 5, DType::f64);
  EXPECT_TRUE(gradient_error(net, 30) <= 1e-5);
  EXPECT_FALSE(gradient_error(net, 30, 1.001) <= 1e-5) << "the check must see an error of a thousandth";
}

TEST(Gradient, SmallCifarResNetWithBatchNormAndOptionA) {
  Net net(cifar_resnet(8, 3, 8, 8), Mode::train, 4, DType::f64, 2);
  EXPECT_TRUE(gradient_error(net, 12) <= 1e-5);
}

TEST(Gradient, PaddedBatchHasTheGradientOfTheValidSamples) {
  const Model model = cifar_resnet(8, 3, 8, 8);
  Net whole(model, Mode::train, 3, DType::f64);
  Net padded(model, Mode::train, 5, DType::f64);
  // The first three samples are equal, because the input is drawn in order.
  padded.scalars().valid = 3;
  padded.scalars().loss_scale = whole.scalars().loss_scale;
  EXPECT_NEAR(whole.run(), padded.run(), 1e-12);
  double difference = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < whole.parameters().numel(); ++i) {
    const double a = whole.parameters().gradients().as<double>()[i];
    const double b = padded.parameters().gradients().as<double>()[i];
    difference += (a - b) * (a - b);
    norm += a * a;
  }
  EXPECT_TRUE(std::sqrt(difference / norm) <= 1e-12) << std::sqrt(difference / norm);
}

TEST(Gradient, BottleneckWithMaxPoolAndDownsample) {
  // A ResNet-50 block in small: stem with max pool, then bottlenecks with projection shortcuts.
  ModelBuilder b("tiny", {12, 12, 3});
  NodeId x = b.conv2d("conv1", b.input(), 6, {.kernel = 5, .stride = 2, .pad = 2});
  x = b.batch_norm("bn1", x, {.relu = true});
  x = b.max_pool("maxpool", x, 3, 2, 1);
  NodeId shortcut = b.batch_norm("d1", b.conv2d("d0", x, 8, {.kernel = 1, .stride = 2}));
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 4, {.kernel = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 4, {.kernel = 3, .stride = 2, .pad = 1}), {.relu = true});
  y = b.batch_norm("b3", b.conv2d("c3", y, 8, {.kernel = 1, .bias = true}), {.relu = true, .residual = shortcut});
  y = b.global_average_pool("avgpool", y);
  b.linear("fc", y, 3);
  Net net(b.build(), Mode::train, 4, DType::f64);
  EXPECT_TRUE(gradient_error(net, 15) <= 1e-5);
}

TEST(Gradient, IdentityShortcutOfAMaxPool) {
  // ResNet-18: the pooled tensor feeds a convolution and the residual of the same block.
  ModelBuilder b("tiny18", {8, 8, 3});
  NodeId x =
      b.max_pool("maxpool", b.batch_norm("bn1", b.conv2d("conv1", b.input(), 4, {.pad = 1}), {.relu = true}), 3, 2, 1);
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 4, {.pad = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 4, {.pad = 1}), {.relu = true, .residual = x});
  b.linear("fc", b.global_average_pool("avgpool", y), 3);
  Net net(b.build(), Mode::train, 3, DType::f64);
  EXPECT_TRUE(gradient_error(net, 15) <= 1e-5);
}

TEST(Gradient, FourReadersOfOneTensorAreAddedUp) {
  ModelBuilder b("fan", {4, 4, 3});
  const NodeId x = b.batch_norm("bn1", b.conv2d("conv1", b.input(), 4, {.pad = 1}), {.relu = true});
  NodeId y = b.batch_norm("r1", x, {.residual = x});
  y = b.batch_norm("r2", y, {.relu = true, .residual = x});
  y = b.batch_norm("r3", b.conv2d("c1", x, 4, {.pad = 1}), {.relu = true, .residual = y});
  b.linear("fc", b.relu("relu", y), 3);
  Net net(b.build(), Mode::train, 3, DType::f64);
  EXPECT_TRUE(gradient_error(net, 15) <= 1e-5);
}

TEST(Gradient, ConvolutionWithBiasAndReluWithoutBatchNorm) {
  ModelBuilder b("plain", {7, 6, 3});
  NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 5, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  x = b.relu("r2", b.conv2d("c2", x, 4, {.kernel = 1, .bias = true}));
  b.linear("fc", x, 3);
  Net net(b.build(), Mode::train, 3, DType::f64);
  EXPECT_TRUE(gradient_error(net, 20) <= 1e-5);
}

TEST(Gradient, LabelSmoothing) {
  PlanOptions options;
  options.label_smoothing = 0.1;
  Net net(mlp({3, 3, 3}, {6}, 4), Mode::train, 5, DType::f64, 1, options);
  EXPECT_TRUE(gradient_error(net, 30) <= 1e-5);
}

}  // namespace
}  // namespace lockstep::nn

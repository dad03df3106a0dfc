// What a training step moves and launches on a GPU, counted from its plan, and that moving less changes no result.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/plan.hpp>

#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

using testing::Net;

Plan planned(const Model& model, std::int64_t batch, DType dtype, Fusions fusions) {
  CpuContext context;
  return Plan(context, model, Mode::train, batch, {.dtype = dtype, .fusions = fusions});
}

double megabytes_a_sample(const Plan& plan) {
  return plan.bytes() / 1e6 / static_cast<double>(plan.batch());
}

TEST(Traffic, OfResNet50) {
  const Plan fused = planned(resnet(50), 256, DType::bf16, Fusions::on);
  const Plan apart = planned(resnet(50), 256, DType::bf16, Fusions::off);
  EXPECT_NEAR(megabytes_a_sample(fused), 345.0, 1.0);
  // Of 16 blocks: the last pass of batch norm reads one gradient instead of two and no mask; of a gradient that comes
  // alone, the last block's, another pass writes it. Of 4 shortcuts: the output of a batch norm is not written and
  // read.
  EXPECT_NEAR(megabytes_a_sample(apart) - megabytes_a_sample(fused), 17.4, 0.3);
  // 53 convolutions in 158 calls, 53 times statistics, apply, reduce and apply of batch norm, and a few single ones;
  // the apply of 4 shortcuts is part of another.
  EXPECT_EQ(fused.launches(), apart.launches() - 4);
  EXPECT_LE(fused.launches(), 380);
}

TEST(Traffic, OfResNet20) {
  const Plan plan = planned(cifar_resnet(20, 10, 32, 32), 512, DType::bf16, Fusions::on);
  EXPECT_LE(plan.launches(), 152);
  EXPECT_LE(megabytes_a_sample(plan), 6.4);
}

/// Blocks with every kind of shortcut: the input itself, subsampled, through a convolution; and a residual of three
/// blocks, whose producer takes two gradients.
Model residual_model() {
  ModelBuilder builder("residual", {8, 8, 4});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  NodeId y = builder.conv2d("conv2", x, 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn2", y, {.relu = true, .residual = x});
  y = builder.conv2d("conv3", x, 16, {.kernel = 3, .stride = 2, .pad = 1});
  x = builder.batch_norm("bn3", y, {.relu = true, .residual = builder.subsample_pad("pad", x, 16, 2)});
  NodeId shortcut = builder.conv2d("conv4", x, 8, {.kernel = 1});
  shortcut = builder.batch_norm("bn4", shortcut);
  y = builder.conv2d("conv5", x, 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn5", y, {.relu = true, .residual = shortcut});
  y = x;
  for (const char* number : {"6", "7", "8"}) {
    y = builder.conv2d(std::string("conv") + number, y, 8, {.kernel = 1});
    y = builder.batch_norm(std::string("bn") + number, y, {.relu = true, .residual = x});
  }
  builder.linear("fc", builder.global_average_pool("pool", y), 3);
  return builder.build();
}

std::vector<double> gradients(DType dtype, Fusions fusions, double& loss) {
  Net net(residual_model(), Mode::train, 6, dtype, 1, {.fusions = fusions});
  net.scalars().valid = 5;
  loss = net.run();
  return testing::to_doubles(net.parameters().gradients());
}

/// |a - b| / |b|.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a.at(i) - b[i]) * (a.at(i) - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(Traffic, WhatIsStoredLessIsTheSameGradient) {
  double loss = 0;
  double other = 0;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<double> apart = gradients(dtype, Fusions::off, loss);
    EXPECT_EQ(apart, gradients(dtype, Fusions::automatic, other)) << "on the host nothing is fused";
    EXPECT_LT(distance(gradients(dtype, Fusions::on, other), apart), dtype == DType::f64 ? 1e-12 : 1e-5);
    EXPECT_NEAR(loss, other, dtype == DType::f64 ? 1e-13 : 1e-6);
  }
  const std::vector<double> exact = gradients(DType::f64, Fusions::off, loss);
  const double apart = distance(gradients(DType::bf16, Fusions::off, loss), exact);
  const double fused = distance(gradients(DType::bf16, Fusions::on, other), exact);
  EXPECT_NEAR(loss, other, 0.02);
  EXPECT_LT(fused, 1.5 * apart) << "one rounding more, one less";
  EXPECT_GT(apart, 1e-4) << "then nothing was rounded";
  EXPECT_TRUE(
      testing::sharing_memory_changes_nothing(residual_model(), Mode::train, 6, DType::f32, {.fusions = Fusions::on}));
}

}  // namespace
}  // namespace lockstep::nn

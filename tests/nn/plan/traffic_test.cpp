// Tests the number of bytes and launches of a training step on a GPU, counted from its plan. Fusions move fewer bytes
// and must not change a result.
#include <algorithm>
#include <cstring>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>

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

/// Returns how often a plan calls an op.
std::int64_t calls_of(const Plan& plan, const std::string& op) {
  return std::count_if(plan.calls().begin(), plan.calls().end(), [&](const Call& call) { return call.op == op; });
}

TEST(Traffic, OfResNet50) {
  const Plan fused = planned(resnet(50), 256, DType::bf16, Fusions::on);
  const Plan apart = planned(resnet(50), 256, DType::bf16, Fusions::off);
  EXPECT_NEAR(megabytes_a_sample(fused), 327.6, 0.2);
  // The fused plan moves fewer bytes for four reasons:
  // (1) In 16 blocks, the last pass of batch norm reads one gradient instead of two, and no mask.
  // (2) In 4 shortcuts, the output of a batch norm is neither written nor read. Two norms share a gradient there. The
  //     passes for the sums and for both dx read this gradient once instead of twice.
  // (3) In the stem, neither the normalised image nor its gradient is stored. An element of the pool's index has one
  //     byte.
  // (4) In layers 3 and 4, norms fit on the chip, so each of their passes reads its input once instead of twice.
  EXPECT_NEAR(megabytes_a_sample(apart) - megabytes_a_sample(fused), 34.4, 0.3);
  // Fusions make 14 calls parts of other calls: 3 calls of the batch norm in each of 4 shortcuts (apply in forward,
  // reduce and apply in backward), and both passes of the pool. A pass of a norm that fits on the chip saves one more
  // launch.
  const auto in_one_launch = calls_of(fused, "batch_norm fused_forward") + calls_of(fused, "batch_norm fused_backward");
  EXPECT_EQ(in_one_launch, 21);
  EXPECT_EQ(fused.launches(), apart.launches() - 14 - in_one_launch);
  EXPECT_LE(fused.launches(), 346);
}

TEST(Traffic, OfResNet20) {
  const Plan plan = planned(cifar_resnet(20, 10, 32, 32), 512, DType::bf16, Fusions::on);
  // In forward, 19 norms fit on the chip. In backward, where the gradient must fit too, 12 norms of layers 2 and 3 fit.
  EXPECT_EQ(calls_of(plan, "batch_norm fused_forward"), 19);
  EXPECT_EQ(calls_of(plan, "batch_norm fused_backward"), 12);
  EXPECT_LE(plan.launches(), 115);
  EXPECT_NEAR(megabytes_a_sample(plan), 5.42, 0.02);
}

/// Counts the passes in which convolutions compute the sums of batch norms.
///
/// Forward: 36 of 53 convolutions. The other 17 are the stem, whose image has 3 channels, and 16 convolutions before
/// norms that fit on the chip.
///
/// Backward: 39 of 52 data gradients. Of the other 13, 7 belong to convolutions with a stride or in a shortcut, 1 to
/// the first convolution after the pool, and 5 to convolutions next to norms that fit on the chip.
TEST(Traffic, OfResNet50WithNormsInConvolutions) {
  CpuContext context;
  PlanOptions options{.dtype = DType::bf16, .fusions = Fusions::on, .norms_in_convolutions = true};
  const Plan plan(context, resnet(50), Mode::train, 256, options);
  EXPECT_LE(megabytes_a_sample(plan), 285);
  EXPECT_NEAR(megabytes_a_sample(plan), 281.4, 0.2);
  EXPECT_EQ(calls_of(plan, "batch_norm fused_forward"), 16);
  EXPECT_EQ(calls_of(plan, "conv2d forward_with_sums reference:norm"), 36);
  EXPECT_EQ(calls_of(plan, "conv2d backward_data_for_norm reference:norm"), 39);
  EXPECT_LE(plan.launches(), 390);
}

/// Returns a residual model. Its stem has a pool. Its blocks have every kind of shortcut (the input itself, a
/// subsampled input, a convolution), and outputs with one and with two gradients. One residual is added in three
/// blocks.
Model residual_model() {
  ModelBuilder builder("residual", {16, 15, 4});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  x = builder.max_pool("pool1", x, 3, 2, 1);
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
  shortcut = builder.batch_norm("bn9", builder.conv2d("conv9", y, 4, {.kernel = 1}));
  y = builder.batch_norm("bn10", builder.conv2d("conv10", y, 4, {.kernel = 1}), {.relu = true, .residual = shortcut});
  builder.linear("fc", builder.global_average_pool("pool", y), 3);
  return builder.build();
}

std::vector<double> gradients(DType dtype, Fusions fusions, double& loss, const Model& model = residual_model(),
                              PlanOptions options = {}) {
  options.fusions = fusions;
  Net net(model, Mode::train, 6, dtype, 1, options);
  net.scalars().valid = 5;
  loss = net.run();
  return testing::to_doubles(net.parameters().gradients());
}

/// Returns a model of two residual blocks. The shortcut of the first block has its own norm, so that a convolution may
/// mask the gradient for two norms. The shortcut of the second block has no norm.
Model two_blocks_model() {
  ModelBuilder builder("two blocks", {9, 7, 4});
  NodeId x =
      builder.batch_norm("bn1", builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .pad = 1}), {.relu = true});
  NodeId y = builder.conv2d("conv2", x, 12, {.kernel = 3, .pad = 1});
  y = builder.batch_norm(
      "bn2", y, {.relu = true, .residual = builder.batch_norm("bn3", builder.conv2d("conv3", x, 12, {.kernel = 1}))});
  x = builder.batch_norm("bn4", builder.conv2d("conv4", y, 8, {.kernel = 3, .pad = 1}), {.relu = true});
  x = builder.batch_norm("bn5", builder.conv2d("conv5", x, 12, {.kernel = 1}), {.relu = true, .residual = y});
  builder.linear("fc", builder.global_average_pool("pool", x), 3);
  return builder.build();
}

/// Returns options with which convolutions also compute the sums of batch norms wherever possible.
PlanOptions serving_norms(const Model& model) {
  PlanOptions options;
  for (const Node& node : model.nodes()) {
    if (node.layer != nullptr && node.layer->kind() == "conv2d") {
      for (const char* pass : {" forward beside a norm", " backward_data beside a norm"}) {
        options.choices[node.layer->name() + pass] = "reference:norm";
      }
    }
  }
  options.choices_required = false;
  options.cooperative = false;  // otherwise small norms would compute their sums themselves
  return options;
}

/// Returns |a - b| / |b|.
double distance(std::vector<double> a, std::vector<double> b) {
  EXPECT_EQ(a.size(), b.size());
  const Shape shape{static_cast<std::int64_t>(b.size())};
  return testing::relative_error(TensorView(std::span(a), shape), TensorView(std::span(b), shape));
}

/// A plan whose convolutions compute the sums of batch norms must give the gradient of a plan without fusions.
///
/// In backward of the residual model, convolutions compute the sums of bn2, bn3, bn6, bn7 and bn8. bn5 is left out,
/// because its output has four gradients. In backward of the model of two blocks, 3 calls compute the sums of 4 norms:
/// bn1, the pair bn2 and bn3, and bn4.
TEST(Traffic, NormsInConvolutionsHaveTheSameGradient) {
  const std::pair<Model, std::pair<int, int>> models[] = {{residual_model(), {10, 5}}, {two_blocks_model(), {5, 3}}};
  for (const auto& [model, served_calls] : models) {
    PlanOptions options = serving_norms(model);
    options.fusions = Fusions::on;
    CpuContext context;
    const Plan plan(context, model, Mode::train, 6, options);
    EXPECT_EQ(calls_of(plan, "conv2d forward_with_sums reference:norm"), served_calls.first);
    EXPECT_EQ(calls_of(plan, "batch_norm coefficients_given"), served_calls.first);
    EXPECT_EQ(calls_of(plan, "conv2d backward_data_for_norm reference:norm"), served_calls.second);
    double loss = 0;
    double other = 0;
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::vector<double> apart = gradients(dtype, Fusions::off, loss, model);
      const std::vector<double> served = gradients(dtype, Fusions::on, other, model, options);
      EXPECT_LT(distance(served, apart), dtype == DType::f64 ? 1e-12 : 1e-5);
      EXPECT_NEAR(loss, other, dtype == DType::f64 ? 1e-13 : 1e-6);
    }
    const std::vector<double> exact = gradients(DType::f64, Fusions::off, loss, model);
    EXPECT_LT(distance(gradients(DType::bf16, Fusions::on, other, model, options), exact),
              1.1 * distance(gradients(DType::bf16, Fusions::off, loss, model), exact));
  }
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

std::int64_t calls_of(const Model& model, const std::string& op, PlanOptions options) {
  CpuContext context;
  options.fusions = Fusions::on;
  const Plan plan(context, testing::on_values(model), Mode::train, 6, options);
  return calls_of(plan, op);
}

/// A pass of batch norm must be one cooperative launch, unless the pass has to wait for a collective or recomputation
/// may repeat the pass.
TEST(Traffic, OneLaunchAPass) {
  const auto calls = [](const PlanOptions& options) {
    return std::pair(calls_of(residual_model(), "batch_norm fused_forward", options),
                     calls_of(residual_model(), "batch_norm fused_backward", options));
  };
  // The residual model has ten norms. The stem's norm is fused with its pool, and two blocks have a fused pair of
  // norms: 5 norms remain for one launch in forward. In backward 4 remain, because bn6 adds its gradient to the
  // gradient that bn7 and bn8 wrote for the same residual.
  EXPECT_EQ(calls({}), std::pair(std::int64_t{5}, std::int64_t{4}));
  EXPECT_EQ(calls({.cooperative = false}), std::pair(std::int64_t{0}, std::int64_t{0}));
  EXPECT_EQ(calls({.recompute = Recompute::cheap}).first, 0);
  double loss = 0;
  EXPECT_EQ(gradients(DType::f32, Fusions::on, loss),
            gradients(DType::f32, Fusions::on, loss, residual_model(), {.cooperative = false}));
}

/// With frozen layers, or with statistics over all ranks, fewer passes are fused. The gradients must stay the same.
TEST(Traffic, FusionsBesideFrozenLayersAndSharedStatistics) {
  comm::LocalGroup group(1);
  const auto ranks = group.communicator(0);
  const PlanOptions shared{.exchange = {.ranks = ranks.get()}, .sync_batch_norm = true};
  struct Case {
    const char* frozen;
    PlanOptions options;
    std::int64_t pairs;  ///< number of shortcuts whose backward is fused
    std::int64_t pools;
  };
  const Case cases[] = {{"", {}, 2, 1},      {"bn4", {}, 2, 1},   {"bn10", {}, 2, 1},
                        {"conv1", {}, 2, 0}, {"conv9", {}, 2, 1}, {"", shared, 0, 1}};
  for (const Case& item : cases) {
    const Model model = *item.frozen == 0 ? residual_model() : residual_model().freezing(item.frozen);
    double loss = 0;
    double other = 0;
    const std::vector<double> apart = gradients(DType::f64, Fusions::off, loss, model, item.options);
    EXPECT_LT(distance(gradients(DType::f64, Fusions::on, other, model, item.options), apart), 1e-12) << item.frozen;
    EXPECT_NEAR(loss, other, 1e-13);
    EXPECT_EQ(calls_of(model, "batch_norm backward_apply_pair", item.options), item.pairs) << item.frozen;
    EXPECT_EQ(calls_of(model, "batch_norm pool_backward_apply", item.options), item.pools) << item.frozen;
    EXPECT_EQ(calls_of(model, "max_pool backward", item.options), 0) << item.frozen;
  }
  // If all layers up to bn1 are frozen, the pool has no backward.
  const Model late = residual_model().freezing("conv1").freezing("bn1");
  EXPECT_EQ(calls_of(late, "batch_norm pool_backward_reduce", {}), 0);
  EXPECT_EQ(calls_of(late, "batch_norm pool_forward", {}), 1);
}

}  // namespace
}  // namespace lockstep::nn

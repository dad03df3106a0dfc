// Tests the bytes and launches of a training step on a GPU, counted from its plan. Moving less must not change a
// result.
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
  // In 16 blocks the last pass of batch norm reads one gradient instead of two, and no mask; a gradient that comes
  // alone, that of the last block, is written by another pass. In 4 shortcuts the output of a batch norm is not written
  // and read, and the gradient of both norms is read once less by the sums and once less by both dx. In the stem
  // neither the normalised image nor its gradient is stored, and the pool's index is a byte. Norms that fit on the
  // chip, in layers 3 and 4, read their input once less in forward, and in backward together with the gradient.
  EXPECT_NEAR(megabytes_a_sample(apart) - megabytes_a_sample(fused), 34.4, 0.3);
  // There are 158 calls of 53 convolutions, 53 times statistics, apply, reduce and apply of batch norm, and a few
  // others. The apply, reduce and apply of 4 shortcuts, both passes of the pool, and both applies of the norms that fit
  // are parts of other calls.
  const auto in_one_launch = calls_of(fused, "batch_norm fused_forward") + calls_of(fused, "batch_norm fused_backward");
  EXPECT_EQ(in_one_launch, 21);
  EXPECT_EQ(fused.launches(), apart.launches() - 14 - in_one_launch);
  EXPECT_LE(fused.launches(), 346);
}

TEST(Traffic, OfResNet20) {
  const Plan plan = planned(cifar_resnet(20, 10, 32, 32), 512, DType::bf16, Fusions::on);
  // 19 norms fit in forward; in backward the norms of layers 2 and 3 fit with their gradients.
  EXPECT_EQ(calls_of(plan, "batch_norm fused_forward"), 19);
  EXPECT_EQ(calls_of(plan, "batch_norm fused_backward"), 12);
  EXPECT_LE(plan.launches(), 115);
  EXPECT_NEAR(megabytes_a_sample(plan), 5.42, 0.02);
}

/// The norms whose sums cuDNN may compute in its convolutions. Forward: the sums of 53 norms, except the stem's, whose
/// image has 3 channels, and 16 that fit on the chip. Backward: 52 data gradients, except 7 of convolutions with a
/// stride or of a block's shortcut, the first two that read the pool, and 5 norms that fit.
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

/// Returns a model with a stem with a pool; blocks with every kind of shortcut (the input itself, subsampled, through a
/// convolution), where one gradient comes and where two do; and a residual of three blocks, whose producer takes two
/// gradients.
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

/// Returns a model of two blocks: one whose shortcut has its own norm, so that a convolution may mask the gradient for
/// both norms, and one without.
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

/// Returns choices of convolutions that serve a norm wherever possible.
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
  options.cooperative = false;  // otherwise the small norms would fit on a chip
  return options;
}

/// Returns |a - b| / |b|.
double distance(std::vector<double> a, std::vector<double> b) {
  EXPECT_EQ(a.size(), b.size());
  const Shape shape{static_cast<std::int64_t>(b.size())};
  return testing::relative_error(TensorView(std::span(a), shape), TensorView(std::span(b), shape));
}

/// The last batch is not full. In the residual model the convolutions serve 5 norms in backward: the norms whose output
/// is last read by a convolution, except bn5, which takes four gradients. In the other model they serve 3 norms, one of
/// them as a pair.
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

/// Batch norm takes one launch for each pass, unless it would wait for collectives or could not be computed again.
TEST(Traffic, OneLaunchAPass) {
  const auto calls = [](const PlanOptions& options) {
    return std::pair(calls_of(residual_model(), "batch_norm fused_forward", options),
                     calls_of(residual_model(), "batch_norm fused_backward", options));
  };
  // Of the ten norms, the stem's is fused with its pool, and two pairs are those of a block and its shortcut. Backward
  // of bn6 adds to the gradient that bn7 and bn8 have made for their residual.
  EXPECT_EQ(calls({}), std::pair(std::int64_t{5}, std::int64_t{4}));
  EXPECT_EQ(calls({.cooperative = false}), std::pair(std::int64_t{0}, std::int64_t{0}));
  EXPECT_EQ(calls({.recompute = Recompute::cheap}).first, 0);
  double loss = 0;
  EXPECT_EQ(gradients(DType::f32, Fusions::on, loss),
            gradients(DType::f32, Fusions::on, loss, residual_model(), {.cooperative = false}));
}

/// If some layers are frozen, or statistics are those of all ranks, less is fused. The gradients stay the same.
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
  // If all layers before them are frozen, no gradient goes back.
  const Model late = residual_model().freezing("conv1").freezing("bn1");
  EXPECT_EQ(calls_of(late, "batch_norm pool_backward_reduce", {}), 0);
  EXPECT_EQ(calls_of(late, "batch_norm pool_forward", {}), 1);
}

}  // namespace
}  // namespace lockstep::nn

// Tests the types that a run computes in: names, models in bf16 compared with f32, loss scales, and plans that are
// never computed.
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/precision.hpp>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using Net = testing::CheckedNet;

TEST(Precision, HasNames) {
  for (const char* name : {"fp32", "tf32", "bf16", "fp16", "f64"}) {
    EXPECT_EQ(name_of(parse_precision(name)), name);
  }
  EXPECT_EQ(parse_precision("fp32"), (Precision{DType::f32, false}));
  EXPECT_EQ(parse_precision("tf32"), (Precision{DType::f32, true}));
  EXPECT_EQ(parse_precision("bf16"), (Precision{DType::bf16, false}));
  EXPECT_EQ(parse_precision("f32"), parse_precision("fp32"));
  EXPECT_EQ(parse_precision("f16"), parse_precision("fp16"));
  for (const char* name : {"", "FP32", "f8", "i32", "bf16 "}) {
    EXPECT_THROW((void)parse_precision(name), UsageError) << name;
  }
  EXPECT_THROW((void)name_of(Precision{DType::i64, false}), UsageError);
  EXPECT_THROW((void)name_of(Precision{DType::bf16, true}), UsageError);
}

TEST(Precision, WhatIsNotComputedIsRefusedWhenPlanning) {
  CpuContext context;
  const Model model = mlp({4, 4, 3}, {5}, 3);
  for (const Mode mode : {Mode::train, Mode::evaluate, Mode::infer}) {
    EXPECT_THROW(Plan(context, model, mode, 2, {.dtype = DType::f16}), UsageError);
    EXPECT_THROW(Plan(context, model, mode, 2, {.dtype = DType::f64, .tf32 = true}), UsageError);
    EXPECT_NO_THROW(Plan(context, model, mode, 2, {.tf32 = true}));
  }
}

TEST(Loss, OptionsOfAnotherLossAreRefusedWhenPlanning) {
  CpuContext context;
  const Model model = mlp({4, 4, 3}, {5}, 3);
  for (const Loss loss : {Loss::mse, Loss::l1, Loss::huber}) {
    EXPECT_THROW(Plan(context, model, Mode::train, 2, {.loss = loss, .label_smoothing = 0.1}), UsageError);
    EXPECT_THROW(Plan(context, model, Mode::evaluate, 2, {.loss = loss, .top_k = 2}), UsageError);
    EXPECT_NO_THROW(Plan(context, model, Mode::train, 2, {.loss = loss}));
  }
  EXPECT_NO_THROW(Plan(context, model, Mode::train, 2, {.label_smoothing = 0.1}));
}

TEST(Precision, EachTypeHasItsDevices) {
  for (const Device device : {Device::cpu(), Device::gpu(1)}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      EXPECT_NO_THROW(require_computed_on(device, dtype)) << device << ' ' << dtype;
    }
  }
  EXPECT_NO_THROW(require_computed_on(Device::gpu(0), DType::f16));
  EXPECT_NO_THROW(require_computed_on(Device::cpu(), DType::f64));
  using testing::error_of;
  testing::expect_holds(error_of<UsageError>([] { require_computed_on(Device::cpu(), DType::f16); }),
                        "dtype is f16 on cpu, expected f32, bf16 or f64");
  testing::expect_holds(error_of<UsageError>([] { require_computed_on(Device::gpu(1), DType::f64); }),
                        "dtype is f64 on cuda:1, expected f32, bf16 or f16");
}

/// Expects the relative distance between the gradients in bf16 and in f32 to be within a bound. Both runs read inputs
/// and targets that are rounded to bf16.
///
/// Every call rounds its output with a relative error of at most 2^-9. The errors of different calls are independent,
/// so they add up like the root of the number of calls. The bound is 2^-8 times this root.
///
/// `kinks`: the model has ReLU or max pooling. Rounding then moves about one of 2^8 elements across a kink, which
/// changes the gradient of this element. So the bound is larger by the root of 2^-8, which is 1/16.
void expect_gradient_of_f32(const Model& model, const PlanOptions& options = {}, bool kinks = false,
                            std::int64_t batch = 8) {
  SCOPED_TRACE(model.name());
  Net f32(model, Mode::train, batch, DType::f32, 2, options);
  Net bf16(model, Mode::train, batch, DType::bf16, 2, options);
  for (const StateField field : {StateField::values, StateField::targets}) {
    const TensorView& rounded = bf16.state().view(field);
    if (rounded.numel() > 0) {
      testing::from_doubles(testing::to_doubles(rounded), f32.state().view(field));
    }
  }
  const double loss = f32.run();
  const double bound = std::sqrt(static_cast<double>(bf16.plan().calls().size())) / 256 + (kinks ? 1.0 / 16 : 0);
  EXPECT_NEAR(bf16.run(), loss, bound * loss);
  const TensorView gradients = bf16.parameters().gradients();
  EXPECT_EQ(gradients.dtype, DType::f32);
  const double error = testing::relative_error(gradients, f32.parameters().gradients());
  EXPECT_TRUE(error <= bound) << error << " above " << bound;
  EXPECT_TRUE(error > 1.0 / 65536) << error << ": it is not in bf16";
  Net other(model, Mode::train, batch, DType::f32, 1, options, 8);
  other.run();
  EXPECT_FALSE(testing::is_close(other.parameters().gradients(), f32.parameters().gradients(), bound)) << "the control";

  // Compares evaluation and inference in bf16 with those in f32.
  Net plain(model, Mode::evaluate, batch, DType::f32, 1, options);
  Net evaluated(model, Mode::evaluate, batch, DType::bf16, 1, options);
  EXPECT_NEAR(evaluated.run(), plain.run(), bound * plain.run());
  Net inferred(model, Mode::infer, batch, DType::bf16, 1, options);
  inferred.run();
  EXPECT_EQ(inferred.plan().output().dtype, DType::bf16);
  testing::expect_same_bits(inferred.plan().output(), evaluated.plan().output());
}

TEST(Bf16, Mlp) {
  expect_gradient_of_f32(mlp({4, 4, 3}, {32, 24}, 5), {}, true);
}

TEST(Bf16, ResNetWithBatchNormAndPools) {
  ModelBuilder b("tiny", {12, 12, 3});
  NodeId x = b.batch_norm("bn1", b.conv2d("conv1", b.input(), 16, {.pad = 1}), {.relu = true});
  x = b.max_pool("maxpool", x, 3, 2, 1);
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 16, {.pad = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 16, {.pad = 1}), {.relu = true, .residual = x});
  const NodeId shortcut = b.subsample_pad("skip", y, 32, 2);
  NodeId z = b.conv2d("c3", y, 32, {.stride = 2, .pad = 1, .bias = true});
  z = b.relu("r3", b.add("sum", z, shortcut));
  z = b.average_pool("edge", z, 3, 1, 1);
  b.linear("fc", b.global_average_pool("avgpool", z), 3);
  expect_gradient_of_f32(b.build(), {}, true);
}

TEST(Bf16, TransformerWithTiedWeightsAndDropout) {
  const PlanOptions options{.dropout_seed = 3};
  expect_gradient_of_f32(
      transformer({.vocabulary = 23, .length = 8, .width = 16, .heads = 2, .layers = 2, .dropout = 0, .causal = true}),
      options);
  ModelBuilder b("dropped", {6, 16});
  NodeId x = b.layer_norm("n", b.linear("in", b.input(), 24, {.activation = ops::Activation::gelu}));
  x = b.linear("out", b.dropout("drop", x, 0.3), 24, {.residual = x});
  b.linear("fc", b.attention("attn", b.linear("qkv", x, 48), {.heads = 4}), 5);
  expect_gradient_of_f32(b.build(), options);
}

TEST(Bf16, Regression) {
  ModelBuilder b("regression", {12});
  b.linear("out", b.activation("act", b.linear("in", b.input(), 32), ops::Activation::tanh), 3);
  expect_gradient_of_f32(b.build(), {.loss = Loss::huber});
}

TEST(Bf16, TheMasterTakesStepsThatTheWeightsAreTooCoarseFor) {
  // A step of 2^-12 on a weight of 1 is lost in bf16; 16 steps together are not.
  CpuContext context;
  ParameterSet set(context, mlp({2, 2, 3}, {}, 3), DType::bf16);
  Optimizer optimizer(context, set, {.momentum = 0});
  ops::fill(context, 1, set.values());
  ops::fill(context, 1, set.gradients());
  set.round_weights(context);
  const double rate = 1.0 / 4096;
  for (int step = 1; step <= 16; ++step) {
    optimizer.update(context, TensorView(std::span(&rate, 1), Shape{}));
    EXPECT_EQ(set.values().span<float>()[0], 1 - static_cast<float>(step) / 4096);
    const double weight = testing::to_doubles(set.weight(0))[0];
    EXPECT_EQ(weight, step <= 8 ? 1 : 1 - 1.0 / 256) << step << ": 8 is half way, and a tie goes to 1";
  }
}

TEST(LossScale, IsParsed) {
  EXPECT_EQ(parse_loss_scale("dynamic").kind, LossScale::Kind::dynamic);
  EXPECT_EQ(parse_loss_scale("dynamic").initial, 65536);
  EXPECT_EQ(parse_loss_scale("off").kind, LossScale::Kind::off);
  EXPECT_EQ(parse_loss_scale("1024").kind, LossScale::Kind::fixed);
  EXPECT_EQ(parse_loss_scale("0.5").initial, 0.5);
  for (const char* text : {"", "on", "0", "-1", "1e38", "inf", "nan", "12x"}) {
    EXPECT_THROW((void)parse_loss_scale(text), UsageError) << text;
  }
  const LossScale automatic = parse_loss_scale("auto");
  EXPECT_THROW(require_loss_scale(automatic), UsageError);
  EXPECT_TRUE(resolved(automatic, DType::f16).dynamic());
  EXPECT_FALSE(resolved(automatic, DType::bf16).scales());
  EXPECT_EQ(resolved(parse_loss_scale("8"), DType::f16).kind, LossScale::Kind::fixed);
  EXPECT_EQ(text_of(parse_loss_scale("off")), "off");
  EXPECT_EQ(text_of(parse_loss_scale("1024")), "fixed 1024");
  EXPECT_EQ(text_of(parse_loss_scale("dynamic")), "dynamic 65536 x 2 after 2000, x 0.5, 1 to 16777216");
  LossScale bad{.kind = LossScale::Kind::dynamic, .initial = 0.5};
  EXPECT_THROW(require_loss_scale(bad), UsageError) << "below the least";
  bad = {.kind = LossScale::Kind::dynamic, .rule = {.interval = 0}};
  EXPECT_THROW(require_loss_scale(bad), UsageError);
}

TEST(LossScale, MultipliesGradientsAndNotTheMetrics) {
  const Model model = cifar_resnet(8, 3, 8, 8);
  Net plain(model, Mode::train, 4, DType::f32);
  Net scaled(model, Mode::train, 4, DType::f32, 1, {.scaled_loss = true});
  EXPECT_EQ(plain.run(), scaled.run());
  std::vector<double> expected = testing::to_doubles(plain.parameters().gradients());
  for (double& value : expected) {
    value *= Net::kLossScale;  // a power of two changes only the exponents
  }
  EXPECT_EQ(testing::to_doubles(scaled.parameters().gradients()), expected);
  EXPECT_FALSE(testing::is_close(scaled.parameters().gradients(), plain.parameters().gradients(), 0.1));
  EXPECT_EQ(scaled.run(), plain.run()) << "and again";
  EXPECT_EQ(testing::to_doubles(scaled.parameters().gradients()), expected);
}

TEST(LossScale, PlanAndParametersAgree) {
  CpuContext context;
  const Model model = mlp({4, 4, 3}, {5}, 3).reading(InputKind::values);
  PlanOptions options;
  const Plan shape(context, model, Mode::train, 2, options);
  StepState state(context, 2, step_layout(model, options));
  const Buffer workspace(shape.workspace_bytes() + 1024, context);
  for (const bool plan_scales : {false, true}) {
    for (const bool parameters_scale : {false, true}) {
      ParameterSet set(context, model, DType::f32);
      if (parameters_scale) {
        add_loss_scale(context, set, 8, false);
        EXPECT_THROW(add_loss_scale(context, set, 8, false), StateError);
      }
      options.scaled_loss = plan_scales;
      Plan train(context, model, Mode::train, 2, options);
      Plan evaluate(context, model, Mode::evaluate, 2, options);
      if (plan_scales == parameters_scale) {
        EXPECT_NO_THROW(train.bind(set, state, workspace));
      } else {
        EXPECT_THROW(train.bind(set, state, workspace), StateError);
      }
      EXPECT_NO_THROW(evaluate.bind(set, state, workspace)) << "no gradient, no scale";
    }
  }
}

}  // namespace
}  // namespace lockstep::nn

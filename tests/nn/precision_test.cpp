// What a run computes in: names, loss scales, and plans that nobody computes.
#include <lockstep/nn/precision.hpp>

#include <gtest/gtest.h>

#include <lockstep/nn/loss_scale.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan.hpp>
#include <lockstep/runtime/error.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/compare.hpp"

namespace lockstep::nn {
namespace {

using testing::Net;

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
    value *= Net::kLossScale;  // a power of two: no other bit changes
  }
  EXPECT_EQ(testing::to_doubles(scaled.parameters().gradients()), expected);
  EXPECT_FALSE(testing::is_close(scaled.parameters().gradients(), plain.parameters().gradients(), 0.1));
  EXPECT_EQ(scaled.run(), plain.run()) << "and again";
  EXPECT_EQ(testing::to_doubles(scaled.parameters().gradients()), expected);
}

TEST(LossScale, PlanAndParametersAgree) {
  CpuContext context;
  const Model model = mlp({4, 4, 3}, {5}, 3);
  PlanOptions options{.uint8_input = false};
  const Plan shape(context, model, Mode::train, 2, options);
  StepState state(context, 2, step_layout(model, options));
  const Buffer workspace(shape.workspace_bytes() + 1024, context);
  for (const bool plan_scales : {false, true}) {
    for (const bool parameters_scale : {false, true}) {
      ParameterSet set(context, model, DType::f32);
      if (parameters_scale) {
        set.add_loss_scale(context, 8, false);
        EXPECT_THROW(set.add_loss_scale(context, 8, false), StateError);
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

// What a run computes in: names, and plans that nobody computes.
#include <lockstep/nn/precision.hpp>

#include <gtest/gtest.h>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::nn {
namespace {

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

}  // namespace
}  // namespace lockstep::nn

#include "tests/kernels/clip_cases.hpp"

#include <limits>

#include "tests/kernels/clip_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ClipScalars;

TEST(Clip, ByHand) {
  CpuContext context;
  struct Case {
    ClipParams params;
    double factor;
    double norm;
  };
  for (const Case& item : {
           Case{{DType::f64, 1, 16}, 1 / (4 + 1e-6), 4},                    // norm above the limit
           Case{{DType::f64, 5, 16}, 1, 4},                                 // norm below the limit
           Case{{DType::f64, 0, 16}, 1, 4},                                 // no limit
           Case{{DType::f64, 1, 1048576, 256}, 1.0 / 256 / (4 + 1e-6), 4},  // norm 1024 with loss scale 256
           Case{{DType::f64, 5, 1048576, 256}, 1.0 / 256, 4},
           Case{{DType::f64, 1, 0}, 1, 0},
           Case{{DType::f64, 0, 1048576, 256, true, 0.5}, 1.0 / 128, 8},  // no limit, with a divisor
           Case{{DType::f64, 5e-7, 1e-16}, 1, 1e-8},                      // tiny norm below a tiny limit
           Case{{DType::f64, 1e-30, 1e-56}, 1e-2 / 1.001, 1e-28},
       }) {
    const CheckedRun instance(clip_case(item.params), context);
    EXPECT_NEAR(instance.output(0).values()[0], item.factor, 1e-15);
    EXPECT_EQ(instance.output(1).values()[0], 0);
    EXPECT_EQ(instance.output(2).values()[0], 42);
    EXPECT_DOUBLE_EQ(instance.output(3).values()[0], item.norm);
    EXPECT_EQ(instance.output(4).values()[0], 7);
  }
}

TEST(Clip, MatchesTheNaiveFormula) {
  for (const ClipParams& p : clip_params()) {
    expect_matches(clip_case(p), [&](Inputs, Outputs out) {
      if (p.divisor < 0) {
        out[0].constant(0);
        out[1].constant(2);
        out[3].constant(0);
        return;
      }
      const double scale = p.all ? 1 / p.loss_scale / p.divisor : 1;
      const double norm = std::sqrt(p.squared_norm) * scale;
      const double clip = p.max_norm == 0 ? 1 : std::min(1.0, p.max_norm / (norm + 1e-6));
      out[0].constant(scale * clip);
      out[1].constant(0);
      if (p.all) {
        out[2].constant(42);
        out[3].constant(norm);
        out[4].constant(7);
      }
    });
  }
}

TEST(Clip, ANormThatIsNotFiniteSkipsTheUpdate) {
  CpuContext context;
  expect_skips(context);
}

TEST(Clip, ADivisorThatIsNotPositiveAndFiniteSkipsTheUpdate) {
  CpuContext context;
  expect_no_weight(context);
  // Without a norm the factor depends on the divisor only.
  float divisor = 0.25F;
  float factor = -1;
  std::int32_t skip = -1;
  const auto call = [&] {
    ops::clip_factor(context, 0,
                     {.divisor = TensorView(std::span(&divisor, 1), Shape{}),
                      .factor = TensorView(std::span(&factor, 1), Shape{}),
                      .skip = TensorView(std::span(&skip, 1), Shape{})});
  };
  call();
  EXPECT_EQ(factor, 4);
  EXPECT_EQ(skip, 0);
  divisor = 0;
  call();
  EXPECT_EQ(factor, 0);
  EXPECT_EQ(skip, 2);
}

TEST(Clip, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor tensors[8] = {{Shape{1}, DType::f64}, {Shape{1}, DType::f32}, {Shape{1}, DType::f32},
                                    {Shape{1}, DType::f32}, {Shape{1}, DType::i32}, {Shape{1}, DType::i64},
                                    {Shape{1}, DType::i64}, {Shape{1}, DType::f64}};
  const ClipScalars good{tensors[0], tensors[1], tensors[2], tensors[3],
                         tensors[4], tensors[5], tensors[6], tensors[7]};
  const auto with = [&](auto&& change, double max_norm = 1) {
    ClipScalars scalars = good;
    change(scalars);
    ops::clip_factor(context, max_norm, scalars);
  };
  EXPECT_NO_THROW(with([](ClipScalars&) {}));
  EXPECT_NO_THROW(with([](ClipScalars& s) { s.loss_scale = s.divisor = s.step = s.skipped = s.norm = {}; }));
  EXPECT_NO_THROW(with([](ClipScalars& s) { s.squared_norm = s.norm = {}; }, 0));
  for (TensorView ClipScalars::*view :
       {&ClipScalars::squared_norm, &ClipScalars::loss_scale, &ClipScalars::divisor, &ClipScalars::factor,
        &ClipScalars::skip, &ClipScalars::step, &ClipScalars::skipped, &ClipScalars::norm}) {
    EXPECT_THROW(with([=](ClipScalars& s) { (s.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(with([=](ClipScalars& s) { (s.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(with([=](ClipScalars& s) { (s.*view).shape = Shape{0}; }), ShapeError);
    if (view != &ClipScalars::squared_norm) {
      EXPECT_THROW(with([=](ClipScalars& s) { (s.*view).shape = Shape{2}; }), ShapeError);
    }
    for (TensorView ClipScalars::*other : {&ClipScalars::squared_norm, &ClipScalars::factor}) {
      if (view != other) {
        EXPECT_THROW(with([=](ClipScalars& s) { (s.*view).data = (s.*other).data; }), ShapeError);
      }
    }
  }
  EXPECT_THROW(with([](ClipScalars& s) { s.factor = {}; }), ShapeError);
  EXPECT_THROW(with([](ClipScalars& s) { s.skip = {}; }), ShapeError);
  EXPECT_THROW(with([](ClipScalars& s) { s.factor.dtype = DType::f64; }), DTypeError) << "loss_scale is f32";
  EXPECT_THROW(with([](ClipScalars& s) { s.squared_norm = s.norm = {}; }), UsageError);
  EXPECT_THROW(with([](ClipScalars& s) { s.squared_norm = {}; }, 0), UsageError);
  for (const double max_norm : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(with([](ClipScalars&) {}, max_norm), UsageError) << max_norm;
  }
}

}  // namespace
}  // namespace lockstep::testing

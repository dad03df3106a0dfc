#include "tests/kernels/loss_scale_cases.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::LossScaleOptions;
using ops::Skip;

TEST(LossScale, ByHand) {
  CpuContext context;
  struct Case {
    LossScaleParams params;
    double scale;
    double good;
  };
  const LossScaleOptions two{.interval = 2};
  for (const Case& item : {
           Case{{DType::f32, Skip::no, 65536, 0, two}, 65536, 1},   // one finite update
           Case{{DType::f32, Skip::no, 65536, 1, two}, 131072, 0},  // the scale grows and the count restarts
           Case{{DType::f32, Skip::not_finite, 65536, 1, two}, 32768, 0},
           Case{{DType::f32, Skip::not_finite, 1, 0, two}, 1, 0},        // the scale is at its minimum
           Case{{DType::f64, Skip::no, 12582912, 1, two}, 16777216, 0},  // the scale stops at its maximum
           Case{{DType::f32, Skip::no, 65536, 1998}, 65536, 1999}, Case{{DType::f32, Skip::no, 65536, 1999}, 131072, 0},
           Case{{DType::f32, Skip::no_weight, 65536, 1999}, 65536, 1999},  // no update, so the state does not change
       }) {
    const CheckedRun instance(loss_scale_case(item.params), context);
    EXPECT_EQ(instance.output(0).values()[0], item.scale);
    EXPECT_EQ(instance.output(1).values()[0], item.good);
  }
}

TEST(LossScale, MatchesTheNaiveFormula) {
  for (const LossScaleParams& p : loss_scale_params()) {
    expect_matches(loss_scale_case(p), [&](Inputs, Outputs out) {
      const bool grows = p.skip == Skip::no && p.good + 1 >= p.options.interval;
      const bool shrinks = p.skip == Skip::not_finite;
      const std::int64_t count = p.skip == Skip::no ? p.good + 1 : p.good;
      out[0].constant(shrinks ? std::fmax(p.scale * p.options.backoff, p.options.least)
                      : grows ? std::fmin(p.scale * p.options.growth, p.options.most)
                              : p.scale);
      out[1].constant(shrinks || grows ? 0 : static_cast<double>(count));
    });
  }
}

TEST(LossScale, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor skip(Shape{1}, DType::i32);
  const GuardedTensor scale(Shape{1}, DType::f32);
  const GuardedTensor good(Shape{1}, DType::i64);
  struct Views {
    TensorView skip, scale, good;
  };
  const auto with = [&](auto&& change, const LossScaleOptions& options = {}) {
    Views views{skip, scale, good};
    change(views);
    ops::loss_scale_update(context, options, views.skip, views.scale, views.good);
  };
  const auto nothing = [](Views&) {};
  EXPECT_NO_THROW(with(nothing));
  for (TensorView Views::*view : {&Views::skip, &Views::scale, &Views::good}) {
    EXPECT_THROW(with([=](Views& v) { (v.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(with([=](Views& v) { (v.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(with([=](Views& v) { (v.*view).shape = Shape{2}; }), ShapeError);
    EXPECT_THROW(with([=](Views& v) { v.*view = {}; }), Error);
  }
  EXPECT_THROW(with([](Views& v) { v.skip.data = v.scale.data; }), ShapeError);
  EXPECT_THROW(with([](Views& v) { v.good.data = v.skip.data; }), Error);
  EXPECT_THROW(with([](Views& v) { v.scale.data = v.good.data; }), ShapeError);
  const double nan = std::nan("");
  for (const LossScaleOptions& options :
       {LossScaleOptions{.growth = 1}, LossScaleOptions{.growth = nan}, LossScaleOptions{.growth = HUGE_VAL},
        LossScaleOptions{.backoff = 0}, LossScaleOptions{.backoff = 1}, LossScaleOptions{.backoff = nan},
        LossScaleOptions{.interval = 0}, LossScaleOptions{.least = 0}, LossScaleOptions{.least = nan},
        LossScaleOptions{.least = 2, .most = 1}, LossScaleOptions{.most = HUGE_VAL}, LossScaleOptions{.most = nan}}) {
    EXPECT_THROW(with(nothing, options), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::testing

#pragma once

#include "tests/kernels/clip_cases.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {

/// Expects that a norm that is not finite gives factor 0 and skip 1. The output `norm` must hold this norm. The
/// counter of skipped updates must grow by one, and the step must not change.
inline void expect_skips(Context& context) {
  for (const ClipParams& p : clip_params_that_skip()) {
    const CheckedRun instance(clip_case(p), context);
    EXPECT_EQ(instance.output(0).values()[0], 0);
    EXPECT_EQ(instance.output(1).values()[0], 1);
    EXPECT_EQ(instance.output(2).values()[0], 41);
    EXPECT_FALSE(std::isfinite(instance.output(3).values()[0]));
    EXPECT_EQ(instance.output(4).values()[0], 8);
  }
}

/// Expects that a divisor that is not positive and finite gives factor 0 and skip 2. The step and the counter of
/// skipped updates must not change.
inline void expect_no_weight(Context& context) {
  for (const ClipParams& p : clip_params_without_weight()) {
    const CheckedRun instance(clip_case(p), context);
    const std::vector<double> expected{0, 2, 41, 0, 7};  // values of factor, skip, step, norm, skipped
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(instance.output(i).values()[0], expected[i]) << "output " << i << ", divisor " << p.divisor;
    }
  }
}

}  // namespace lockstep::testing

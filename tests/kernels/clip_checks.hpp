#pragma once

#include "tests/kernels/clip_cases.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {

/// A norm that is not finite: factor 0, skip 1, the step stays, the norm is reported as it is.
inline void expect_skips(Context& context) {
  for (const ClipParams& p : clip_params_that_skip()) {
    OpInstance instance(clip_case(p), context);
    run_checked(instance);
    EXPECT_EQ(instance.output(0).values()[0], 0);
    EXPECT_EQ(instance.output(1).values()[0], 1);
    EXPECT_EQ(instance.output(2).values()[0], 41);
    EXPECT_FALSE(std::isfinite(instance.output(3).values()[0]));
    EXPECT_EQ(instance.output(4).values()[0], 8);
  }
}

}  // namespace lockstep::testing

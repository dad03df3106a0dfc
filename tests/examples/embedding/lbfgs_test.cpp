// Tests lbfgs, an optimizer of the host program that works on flat vectors. With the same number of evaluations, it
// must reach a far smaller loss than Adam, on any number of ranks.
#include <cmath>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using testing::Ended;

/// Losses that the program lbfgs prints; NaN if it prints none.
struct Losses {
  double lbfgs = std::nan("");
  double adam = std::nan("");
};

Losses losses(int ranks) {
  const Ended ended =
      testing::run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + LBFGS).finished();
  ended.has({{std::to_string(ranks) + " ranks, 337 parameters, 400 evaluations", 1}});
  Losses found;
  for (const std::string& line : ended.lines()) {
    std::sscanf(line.c_str(), "L-BFGS: loss %lf", &found.lbfgs);
    std::sscanf(line.c_str(), "Adam: loss %lf", &found.adam);
  }
  return found;
}

TEST(Lbfgs, NeedsFewerEvaluationsThanAdam) {
  const Losses one = losses(1), three = losses(3);
  EXPECT_LT(one.lbfgs, 0.1 * one.adam);
  EXPECT_LT(three.lbfgs, 0.1 * three.adam);
  EXPECT_NEAR(three.adam, one.adam, 1e-6 * one.adam);
}

}  // namespace
}  // namespace lockstep

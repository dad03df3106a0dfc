// Tests lorenz96: after enough steps the network must explain more of the variance than a polynomial, and after a few
// steps it must not.
#include <cmath>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

Ended lorenz96(int ranks, const std::string& steps = "") {
  return run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + LORENZ96 + " " + steps);
}

/// Shares of the variance that network and polynomial explain; NaN if the program does not print them.
struct Explained {
  double network = std::nan("");
  double polynomial = std::nan("");
};

Explained explained(const Ended& ended, int ranks) {
  Explained found;
  const std::string format =
      std::to_string(ranks) + " ranks: of the variance of U the network explains%lf, the polynomial%lf";
  for (const std::string& line : ended.lines()) {
    if (std::sscanf(line.c_str(), format.c_str(), &found.network, &found.polynomial) == 2) {
      return found;
    }
  }
  ADD_FAILURE() << ended.output;
  return {};
}

TEST(Lorenz96, TheNetworkLearnsTheClosureWhileTheSystemRuns) {
  const Ended ended = lorenz96(2).finished();
  ended.has({{"the closure is learned", 1}});
  const Explained found = explained(ended, 2);
  EXPECT_GT(found.network, 0.87) << ended.output;
  EXPECT_GT(found.network, found.polynomial + 0.02) << ended.output;
  // The share of the variance that a quartic polynomial is known to explain with these parameters of the system.
  EXPECT_NEAR(found.polynomial, 0.847, 0.01) << ended.output;
}

// After a few steps, the program must report that the closure is not learned. The explained shares must be the same
// with 1 and 3 ranks, although 3 ranks have different numbers of ensemble members.
TEST(Lorenz96, AFewStepsAreNotEnough) {
  const Ended alone = lorenz96(1, "40");
  const Ended three = lorenz96(3, "40");
  for (const Ended* ended : {&alone, &three}) {
    EXPECT_EQ(ended->code, 1) << ended->output;
    EXPECT_EQ(ended->count("NOT learned: expected more than 0.87"), 1) << ended->output;
    EXPECT_EQ(ended->count("the closure is learned"), 0) << ended->output;
  }
  const Explained one = explained(alone, 1);
  EXPECT_LT(one.network, 0.87);
  EXPECT_NEAR(explained(three, 3).network, one.network, 2e-4);
  EXPECT_NEAR(explained(three, 3).polynomial, one.polynomial, 2e-4);
}

TEST(Lorenz96, WhatItDoesNotUnderstandItRefuses) {
  for (const char* argument : {"many", "10 10"}) {
    const Ended ended = lorenz96(1, argument);
    EXPECT_EQ(ended.code, 2) << ended.output;
    ended.has({{"lorenz96 [STEPS], at least 1", 1}});
  }
}

}  // namespace
}  // namespace lockstep

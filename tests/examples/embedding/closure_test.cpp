// Tests the example closure, in C and in Fortran, with several numbers of ranks. A closure is a term that a solver
// lacks. If the term is trained through the solver (a posteriori), it must get the known coefficients. If it is fitted
// to observations without the solver (a priori), it must not. In C, an assimilation with constant parameters must find
// the state of the system.
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using testing::Ended;

struct Answers {
  double before[2] = {std::nan(""), std::nan("")};  ///< coefficients of the fit a priori
  double after[2] = {std::nan(""), std::nan("")};   ///< coefficients of the training a posteriori
  double guess = std::nan(""), error = std::nan("");
};

Answers answers(const char* program, int ranks) {
  const Ended ended =
      testing::run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + program).finished();
  ended.exits(0);
  Answers found;
  for (const std::string& line : ended.lines()) {
    std::sscanf(line.c_str(), "a priori: c(x) = %lf x + %lf", &found.before[0], &found.before[1]);
    std::sscanf(line.c_str(), "a posteriori: c(x) = %lf x + %lf", &found.after[0], &found.after[1]);
    std::sscanf(line.c_str(), "assimilation: the state's largest error was %lf, and is %lf", &found.guess,
                &found.error);
  }
  return found;
}

void expect_right(const Answers& found) {
  EXPECT_GT(std::abs(found.before[0] + 1), 1) << "the fit a priori: " << found.before[0];
  EXPECT_NEAR(found.after[0], -1, 1e-3);
  EXPECT_NEAR(found.after[1], 8, 1e-2);
}

TEST(Closure, InCFindsTheCoefficientsAndTheState) {
  for (const int ranks : {1, 3}) {
    const Answers found = answers(CLOSURE_C, ranks);
    expect_right(found);
    EXPECT_GT(found.guess, 0.4);
    EXPECT_LT(found.error, 1e-3);
  }
}

TEST(Closure, InFortranFindsTheCoefficients) {
#ifdef CLOSURE_FORTRAN
  expect_right(answers(CLOSURE_FORTRAN, 2));
#else
  GTEST_SKIP() << "this build has no Fortran module of MPI";
#endif
}

}  // namespace
}  // namespace lockstep

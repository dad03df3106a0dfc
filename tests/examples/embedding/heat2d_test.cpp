// Tests heat2d in C, C++ and Fortran. The program must learn the stencil in f32 and f64, and all languages and numbers
// of ranks must have the same losses. The program must report when the stencil cannot be learned.
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

struct Program {
  const char* language;
  const char* path;
  bool counts_allocations;
  /// true: the program can train on half of its ranks. It also checks that only the outputs are written, and that the
  /// fields determine all weights.
  bool proves;
};
std::ostream& operator<<(std::ostream& out, const Program& program) {
  return out << program.language;
}

const std::vector<Program>& programs() {
  static const std::vector<Program> kPrograms = {
    {"C", HEAT2D_C, true, true},
    {"Cxx", HEAT2D_CXX, false, false},
#if defined(HEAT2D_FORTRAN)
    {"Fortran", HEAT2D_FORTRAN, false, true},
#endif
  };
  return kPrograms;
}

std::vector<Program> proving_programs() {
  std::vector<Program> found = programs();
  std::erase_if(found, [](const Program& program) { return !program.proves; });
  return found;
}

/// Returns true for the program in C. Some properties of the library are tested only with this program.
bool is_c(const Program& program) {
  return std::string(program.language) == "C";
}

/// Output of a run of heat2d.
struct Outcome {
  Ended ended;
  std::map<int, double> loss;   ///< key: step
  std::vector<double> weights;  ///< weights of the 3 x 3 stencil, row by row
};

Outcome heat2d(const Program& program, int ranks, const std::string& options = "") {
  Outcome run;
  run.ended = run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + program.path + " " + options);
  for (const std::string& line : run.ended.lines()) {
    int step = 0;
    double w[3] = {};
    if (std::sscanf(line.c_str(), "step %d: loss %lf", &step, w) == 2) {
      run.loss[step] = w[0];
    } else if (line.size() == 60 && std::sscanf(line.c_str(), "%lf%lf%lf", &w[0], &w[1], &w[2]) == 3) {
      run.weights.insert(run.weights.end(), w, w + 3);
    }
  }
  return run;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != 9 || b.size() != 9) {
    return HUGE_VAL;
  }
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::fmax(largest, std::isfinite(a[i] - b[i]) ? std::fabs(a[i] - b[i]) : HUGE_VAL);
  }
  return largest;
}

/// Exact weights: the five-point stencil of the heat equation with r = 0.2.
const std::vector<double> kExact = {0, 0.2, 0, 0.2, 0.2, 0.2, 0, 0.2, 0};

void expect_learned(const Program& program, const Outcome& run, double gate) {
  run.ended.finished();
  EXPECT_LT(largest_difference(run.weights, kExact), gate) << run.ended.output;
  run.ended.has({{"the stencil is learned", 1},
                 {"9 of 9 weights can be told apart; 0 arrays written outside the views", program.proves ? 1 : 0},
                 {"; 0 allocations after step 2", program.counts_allocations ? 1 : 0}});
}

/// Expects equal losses, except for rounding. A loss is the square of an error, so the square roots are compared. The
/// smallest errors are as large as rounding errors of the field's values, so 1e-14 is allowed in addition.
void expect_same_losses(const Outcome& run, const Outcome& reference, int first) {
  for (int step = first; step <= 600; step += 100) {
    ASSERT_EQ(run.loss.count(step), 1U) << step << '\n' << run.ended.output;
    const double a = std::sqrt(run.loss.at(step));
    const double b = std::sqrt(reference.loss.at(step));
    EXPECT_NEAR(a, b, 1e-9 * b + 1e-14) << "step " << step;
  }
}

void expect_not_learned(const Outcome& run, const std::string& why) {
  EXPECT_EQ(run.ended.code, 1) << run.ended.output;
  run.ended.has({{"NOT learned: " + why, 1}, {"the stencil is learned", 0}});
  EXPECT_GT(largest_difference(run.weights, kExact), 1e-3) << run.ended.output;
}

/// Returns the result of the C program with one rank, which is the reference for all other runs.
const Outcome& reference() {
  static const Outcome kOutcome = heat2d(programs().front(), 1);
  return kOutcome;
}

class Heat2d : public ::testing::TestWithParam<Program> {};
class Heat2dProofs : public ::testing::TestWithParam<Program> {};

TEST_P(Heat2d, FindsTheStencilWithEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    SCOPED_TRACE(ranks);
    const Outcome run = heat2d(GetParam(), ranks);
    expect_learned(GetParam(), run, 1e-10);
    EXPECT_LT(largest_difference(run.weights, reference().weights), 1e-12) << run.ended.output;
    expect_same_losses(run, reference(), 100);
    if (ranks == 2 || is_c(GetParam())) {
      expect_learned(GetParam(), heat2d(GetParam(), ranks, "--type f32"), 1e-5);
    }
  }
}

TEST_P(Heat2dProofs, HalfOfTheRanksTrainAndTheOthersGoOn) {
  const Outcome run = heat2d(GetParam(), 4, "--train half");
  expect_learned(GetParam(), run, 1e-10);
  EXPECT_LT(largest_difference(run.weights, reference().weights), 1e-12) << run.ended.output;
  run.ended.has({{"2 ranks, f64: ", 1}, {"2 other ranks solved 600 steps meanwhile: largest error ", 1}});
}

// Three ranks save at step 400, when the weights are not exact yet, and two ranks continue from there. The optimizer's
// momentum is saved, too, so the steps must equal those of a run without a stop.
TEST_P(Heat2d, GoesOnFromACheckpointWithAnotherNumberOfRanks) {
  const testing::TemporaryFolder folder;
  const std::string saved = folder / "state";
  expect_learned(GetParam(), heat2d(GetParam(), 3, "--save " + saved), 1e-10);
  const Outcome run = heat2d(GetParam(), 2, "--load " + saved);
  expect_learned(GetParam(), run, 1e-10);
  EXPECT_EQ(run.loss.size(), 2U) << run.ended.output;
  EXPECT_LT(largest_difference(run.weights, reference().weights), 1e-12) << run.ended.output;
  EXPECT_GT(reference().loss.at(400), 1e-20);
  expect_same_losses(run, reference(), 500);
  const Outcome none = heat2d(GetParam(), 2, "--load " + (folder / "nothing"));
  EXPECT_EQ(none.ended.code, 1) << none.ended.output;
  EXPECT_GE(none.ended.count("nothing"), 1) << none.ended.output;
}

TEST_P(Heat2dProofs, OneModeDoesNotTellTheWeightsApart) {
  const Outcome run = heat2d(GetParam(), 2, "--field sine");
  expect_not_learned(run, "the fields do not tell the weights apart");
  run.ended.has({{"4 of 9 weights can be told apart; 0 arrays written", 1}});
  EXPECT_LT(run.loss.at(600), 1e-10) << "the loss is small all the same\n" << run.ended.output;
}

TEST_P(Heat2dProofs, AWrongHaloIsNoticedWithMoreThanOneRank) {
  if (is_c(GetParam())) {
    expect_learned(GetParam(), heat2d(GetParam(), 1, "--halo wrong"), 1e-10);
  }
  const Outcome run = heat2d(GetParam(), 2, "--halo wrong");
  expect_not_learned(run, "the solver sees something that the network does not");
  run.ended.has({{"9 of 9 weights can be told apart; 0 arrays written", 1}});
  EXPECT_GT(run.loss.at(600), 1e-4) << run.ended.output;
}

TEST_P(Heat2d, WhatItDoesNotUnderstandItRefuses) {
  for (const char* options : {"--type f16", "--type f32 --field"}) {
    const Outcome run = heat2d(GetParam(), 1, options);
    EXPECT_EQ(run.ended.code, 2) << run.ended.output;
    run.ended.has({{"heat2d [--type f32] [--", 1}});
  }
}

INSTANTIATE_TEST_SUITE_P(Languages, Heat2d, ::testing::ValuesIn(programs()),
                         [](const auto& language) { return language.param.language; });
INSTANTIATE_TEST_SUITE_P(Languages, Heat2dProofs, ::testing::ValuesIn(proving_programs()),
                         [](const auto& language) { return language.param.language; });

}  // namespace
}  // namespace lockstep

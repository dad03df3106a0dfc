// own_model as people call it: it trains, goes on where it was, and predicts.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

constexpr bool kMpi = LOCKSTEP_HAS_MPI != 0;

std::string line_with(const Ended& ended, const std::string& text) {
  for (const std::string& line : ended.lines()) {
    if (line.find(text) != std::string::npos) {
      return line;
    }
  }
  return "";
}

/// own_model in a folder of its own, under mpirun where ranks are given.
Ended own_model(const std::string& folder, int ranks, const std::string& epochs) {
  const std::string mpirun = ranks > 0 ? std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " : "";
  return run_command("sh -c 'cd " + folder + " && OMP_NUM_THREADS=1 " + mpirun + OWN_MODEL + " " + epochs + "'");
}

void expect_own_model(int ranks) {
  const testing::TemporaryFolder folder;
  own_model(folder.path(), ranks, "20").finished({}, {{"epoch ", 20}});
  // In the same folder it goes on.
  const Ended second = own_model(folder.path(), ranks, "25").finished();
  const std::string last = line_with(second, "epoch 25: ");
  second.has({{"epoch ", 5}});
  EXPECT_EQ(line_with(second, "epoch 20: "), "") << second.output;
  const std::size_t accuracy = last.find("accuracy ");
  ASSERT_NE(accuracy, std::string::npos) << second.output;
  EXPECT_GT(std::atof(last.c_str() + accuracy + 9), 95) << last;
  second.has({{"(0.33, 0) is on spiral 1", 1}});
}

TEST(OwnModel, OneRankTrainsGoesOnAndPredicts) {
  expect_own_model(0);
}

TEST(OwnModel, OnlyANumberOfEpochsIsTaken) {
  const testing::TemporaryFolder folder;
  for (const char* wrong : {"--help", "many", "0", "-1", "2x", "2 3"}) {
    testing::expect_refused(own_model(folder.path(), 0, wrong), {"own_model [EPOCHS]"});
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "own_model.out"));
}

TEST(OwnModel, TwoRanksTrainGoOnAndPredict) {
  if (!kMpi) {
    GTEST_SKIP() << "this build has no MPI";
  }
  expect_own_model(2);
}

}  // namespace
}  // namespace lockstep

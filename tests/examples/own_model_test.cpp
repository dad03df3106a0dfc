// Tests own_model as users call it: it must train, resume and predict.
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

/// Runs own_model in folder `folder`. If `ranks` is above 0, runs it under mpirun.
Ended own_model(const std::string& folder, int ranks, const std::string& epochs) {
  const std::string mpirun = ranks > 0 ? std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " : "";
  return run_command("sh -c 'cd " + folder + " && OMP_NUM_THREADS=1 " + mpirun + OWN_MODEL + " " + epochs + "'");
}

void expect_own_model(int ranks) {
  const testing::TemporaryFolder folder;
  own_model(folder.path(), ranks, "20").finished({}, {{"epoch ", 20}});
  // The second run uses the folder of the first run, so it must resume the first run.
  const Ended second = own_model(folder.path(), ranks, "25")
                           .finished({}, {{"epoch ", 5}, {"epoch 20: ", 0}, {"(0.33, 0) is on spiral 1", 1}});
  const std::string last = second.from("epoch 25: ");
  EXPECT_GT(second.number_after(last.substr(0, last.find("accuracy ")) + "accuracy "), 95) << last;
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

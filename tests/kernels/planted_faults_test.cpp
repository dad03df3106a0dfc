// Compiled with a planted fault (tests/virtual_gpu/kernels/faults.cmake), the emulated kernels must fail the tests that
// look for this fault.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "planted_faults.hpp"

void PrintTo(const PlantedFault& fault, std::ostream* out) {
  *out << fault.name;
}

namespace {

constexpr bool kRace = std::string_view(EMULATED_BUILD) == "race";
constexpr int kSchedules = kRace ? 1 : 6;  // number of thread schedules; the race checker finds a race in any schedule

/// Runs the emulated tests under each of the first kSchedules thread schedules, until one fails. Returns the exit
/// status, or -1 if no test could be run.
int run_tests(int fault, const char* filter, std::string& output) {
  for (int first = 0; first < kSchedules; ++first) {
    // GCOV_PREFIX keeps these runs out of the line coverage. GoogleTest's shard variables divide the faults among
    // processes of this program. They are reset for the child, which must run all tests that `filter` selects.
    const std::string command = "GTEST_TOTAL_SHARDS=1 GTEST_SHARD_INDEX=0 GCOV_PREFIX=" + ::testing::TempDir() +
                                "planted LOCKSTEP_PLANTED_FAULT=" + std::to_string(fault) +
                                " LOCKSTEP_EMULATION_FIRST=" + std::to_string(first) +
                                " timeout 60 " EMULATED_TESTS " --gtest_fail_fast --gtest_filter='" + filter + "' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) {
      return -1;
    }
    output.clear();
    char block[4096];
    for (std::size_t n = 0; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) {
      output.append(block, n);
    }
    const int status = pclose(pipe);
    if (status != 0) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (output.find("[  PASSED  ] 0 tests") != std::string::npos) {
      return -1;
    }
  }
  return 0;
}

class PlantedFaults : public ::testing::TestWithParam<PlantedFault> {};

TEST_P(PlantedFaults, AreCaught) {
  const PlantedFault& fault = GetParam();
  if (!(kRace ? fault.race : fault.asan)) {
    GTEST_SKIP() << "is for the " << (kRace ? "asan" : "race") << " build to find";
  }
  std::string output;
  const int status = run_tests(fault.number, fault.filter, output);
  EXPECT_NE(status, -1) << "no test matches " << fault.filter;
  EXPECT_NE(status, 0) << "all tests of " << fault.filter << " passed with the fault planted";
  EXPECT_NE(status, 127) << output;
  EXPECT_NE(status, 124) << "found by its time limit only\n" << output;
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace

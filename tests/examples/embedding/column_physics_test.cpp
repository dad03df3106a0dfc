// column_physics itself checks that results do not depend on blocks or threads. This test checks that they do not
// depend on the number of ranks either, by the fingerprint that the program prints. As a control, another seed must
// change the fingerprint.
#include <string>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

/// Returns the fingerprint that the program prints with `ranks` ranks, or an empty text after an error.
std::string fingerprint(int ranks, const std::string& seed = "") {
  const testing::Ended ended =
      testing::run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + COLUMN_PHYSICS + " " + seed)
          .finished();
  ended.has({{"and 1, 2, 3 threads: T; ", 1}, {"untouched: T", 1}});
  const std::string before = std::to_string(ranks) + " ranks: fingerprint ";
  for (const std::string& line : ended.lines()) {
    if (line.starts_with(before)) {
      return line.substr(before.size());
    }
  }
  ADD_FAILURE() << ended.output;
  return "";
}

TEST(ColumnPhysics, HasTheSameBitsWithEveryNumberOfRanks) {
  const std::string one = fingerprint(1);
  EXPECT_GE(one.size(), 4U) << one;
  EXPECT_EQ(fingerprint(2), one);
  EXPECT_EQ(fingerprint(3), one);
  EXPECT_NE(fingerprint(1, "2"), one) << "other parameters";
}

}  // namespace
}  // namespace lockstep

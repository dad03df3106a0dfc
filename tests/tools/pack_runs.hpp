#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace lockstep::tools {

/// lockstep-pack (LOCKSTEP_TEST_PROGRAM) in a folder of its own, and what training on its files leaves.
class PackTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }
  static testing::Ended pack(const std::string& options) {
    return testing::run_command(std::string(LOCKSTEP_TEST_PROGRAM) + " " + options);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  /// All that training has changed.
  [[nodiscard]] std::string state(const std::string& run) const {
    const std::string last = path(run) + "/last/";
    return testing::get_file(last + "model.safetensors") + testing::get_file(last + "optimizer.safetensors");
  }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace lockstep::tools

#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_here.hpp"

int lockstep_pack_main(int argc, char** argv);
int train_resnet_main(int argc, char** argv);

namespace lockstep::tools {

/// Fixture that runs lockstep-pack in its own folder, and reads the results of training on its files.
class PackTest : public testing::ProgramTest {
 protected:
  static testing::Ended pack(const std::string& options) {
    return testing::run_here(lockstep_pack_main, "lockstep-pack " + options);
  }
  /// Returns the JSON object that a call with --json prints.
  static Json json_of(const std::string& options) { return parse_json(pack(options + " --json").printed, "output"); }
  /// Returns the bytes of all state that training has changed.
  [[nodiscard]] std::string state(const std::string& run) const {
    return model(run) + get(run + "/last/optimizer.safetensors");
  }
};

/// Expects that damage of a packed file is reported in one error line. Tries the file with single bits changed, and the
/// file cut short. `check` writes the bytes to a file and runs the program on it.
template <class Check>
void expect_damage_is_told(const std::string& good,
                           const std::vector<std::pair<std::size_t, std::vector<std::string>>>& changes,
                           const Check& check) {
  for (const auto& [at, words] : changes) {
    std::string bytes = good;
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
    testing::expect_refused(check(bytes), words);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, good.size() / 2, good.size() - 1}) {
    const testing::Ended ended = check(good.substr(0, size));
    testing::expect_refused(ended, {size == 0 ? "begins as no packed file does" : "it is cut off"});
    EXPECT_EQ(ended.lines().size(), 1U) << ended.output;
  }
}

}  // namespace lockstep::tools

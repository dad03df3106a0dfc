#pragma once

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace lockstep::testing {

/// Fixture of tests of programs. The programs compute on the CPU, also on a machine with a GPU. The fixture has a
/// folder for their files.
class ProgramTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string out(const std::string& name) const { return " --out " + path(name) + " "; }
  [[nodiscard]] std::string get(const std::string& name) const { return get_file(path(name)); }
  /// Writes a file and returns its path.
  std::string put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    put_file(path(name), bytes);
    return path(name);
  }
  /// Returns the bytes of the parameters in a run's last checkpoint.
  [[nodiscard]] std::string model(const std::string& run) const { return get(run + "/last/model.safetensors"); }
  /// Returns the lines of a run's metrics.jsonl: all of them, or the lines of one event.
  [[nodiscard]] std::vector<Json> events(const std::string& run, const std::string& event = "") const {
    std::vector<Json> found;
    std::istringstream lines(get(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      found.push_back(parse_json(line, "metrics.jsonl"));
      if (!event.empty() && found.back().get<std::string>("event", line) != event) {
        found.pop_back();
      }
    }
    return found;
  }
  [[nodiscard]] Json config(const std::string& run) const { return read_json(path(run + "/config.json")); }

 private:
  TemporaryFolder folder_;
};

/// Expects that an object has these members with these values.
inline void expect_members(const Json& object, const Json::Object& members, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  const ::testing::ScopedTrace called(file, line, "expect_members");
  for (const auto& [name, value] : members) {
    EXPECT_EQ(object.has(name) ? object.member(name, "object").text() : "missing", value.text()) << name;
  }
}

}  // namespace lockstep::testing

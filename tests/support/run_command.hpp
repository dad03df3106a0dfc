#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing {

/// How a program ended that a test has started.
struct Ended {
  int code = -1;
  std::string output;  ///< standard output and error together
  double seconds = 0;

  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> found;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);) {
      found.push_back(line.substr(line.starts_with('\0') ? 1 : 0));  // 0 ends each message of Open MPI 5's mpirun
    }
    return found;
  }
  [[nodiscard]] std::vector<std::string> error_lines() const {
    std::vector<std::string> found = lines();
    std::erase_if(found, [](const std::string& line) { return !line.starts_with("lockstep: error:"); });
    return found;
  }
  /// Lines that have the text.
  [[nodiscard]] int count(const std::string& text) const {
    const std::vector<std::string> all = lines();
    return static_cast<int>(std::count_if(
        all.begin(), all.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
};

/// The shell command with no input, for at most 100 seconds; code -1 when it could not be started, 128 + N when signal
/// N ended it.
inline Ended run_command(const std::string& command) {
  Ended ended;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen(("timeout -k 5 100 " + command + " 2>&1 < /dev/null").c_str(), "r");
  if (pipe == nullptr) {
    return ended;
  }
  char block[4096];
  for (std::size_t n = 0; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) {
    ended.output.append(block, n);
  }
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

/// A job of `mpirun` with one rank for each of the shell's commands, which have no single quotes. Not by mpirun's
/// "-np 1 A : -np 1 B": that of Debian 13 (Open MPI 5.0.7) crashes.
inline Ended run_as_ranks(const std::string& mpirun, const std::vector<std::string>& commands) {
  std::string cases;
  for (std::size_t rank = 0; rank < commands.size(); ++rank) {
    cases += std::to_string(rank) + ") " + commands[rank] + ";; ";
  }
  return run_command(mpirun + " -np " + std::to_string(commands.size()) +
                     " sh -c 'case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in " + cases + "esac'");
}

/// A text that a program prints on so many lines.
struct Printed {
  Printed(const char* said, int lines = 1) : text(said), times(lines) {}  // NOLINT(google-explicit-constructor)
  Printed(std::string said, int lines = 1)
      : text(std::move(said)), times(lines) {}  // NOLINT(google-explicit-constructor)
  std::string text;
  int times;
};

inline void expect_printed(const Ended& ended, std::initializer_list<Printed> printed,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (const Printed& each : printed) {
    if (const int times = ended.count(each.text); times != each.times) {
      ADD_FAILURE_AT(file, line) << "'" << each.text << "' is on " << times << " lines, expected " << each.times
                                 << ":\n"
                                 << ended.output;
    }
  }
}

/// Expects the exit code and what was printed.
inline void expect_ended(const Ended& ended, int code, std::initializer_list<Printed> printed = {},
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (ended.code != code) {
    ADD_FAILURE_AT(file, line) << "the exit code is " << ended.code << ", expected " << code << ":\n" << ended.output;
  }
  expect_printed(ended, printed, file, line);
}

/// Exit code 2 and one error line that has all of these words.
inline void expect_refused(const Ended& ended, const std::vector<std::string>& words) {
  EXPECT_EQ(ended.code, 2) << ended.output;
  const std::vector<std::string> lines = ended.error_lines();
  ASSERT_EQ(lines.size(), 1U) << ended.output;
  for (const std::string& word : words) {
    EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0] << "\nlacks: " << word;
  }
}

}  // namespace lockstep::testing

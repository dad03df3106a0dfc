#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing {

/// A text that a program prints, and the number of lines that have it.
struct Printed {
  Printed(const char* said, int lines = 1) : text(said), times(lines) {}  // NOLINT(google-explicit-constructor)
  Printed(std::string said, int lines = 1)
      : text(std::move(said)), times(lines) {}  // NOLINT(google-explicit-constructor)
  std::string text;
  int times;  ///< number of lines that have the text
};

/// Exit code, output and duration of a program that a test has run.
struct Ended {
  int code = -1;
  std::string output;   ///< standard output and error together
  std::string printed;  ///< standard output alone; only run_here() sets it
  double seconds = 0;

  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> found;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);) {
      found.push_back(
          line.substr(line.starts_with('\0') ? 1 : 0));  // Open MPI 5's mpirun ends each message with a zero byte
    }
    return found;
  }
  [[nodiscard]] std::vector<std::string> error_lines() const {
    std::vector<std::string> found = lines();
    std::erase_if(found, [](const std::string& line) { return !line.starts_with("lockstep: error:"); });
    return found;
  }
  /// Returns the output from the first occurrence of the text to the end of its line; "" if the output lacks the text.
  [[nodiscard]] std::string from(const std::string& text) const {
    const std::size_t at = output.find(text);
    return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
  }
  /// Returns the number after the first occurrence of the text; NaN if the output lacks the text.
  [[nodiscard]] double number_after(const std::string& text) const {
    const std::string found = from(text);
    return found.empty() ? std::nan("") : std::strtod(found.c_str() + text.size(), nullptr);
  }
  /// Returns the number of lines that have the text.
  [[nodiscard]] int count(const std::string& text) const {
    const std::vector<std::string> all = lines();
    return static_cast<int>(std::count_if(
        all.begin(), all.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }

  /// Fails and ends the test unless `expected` is the exit code. Then checks says(texts) and has(lines_with).
  const Ended& exits(int expected, const std::vector<std::string>& texts = {},
                     const std::vector<Printed>& lines_with = {}, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) const {
    if (code != expected) {
      ADD_FAILURE_AT(file, line) << "exit code " << code << ", expected " << expected << '\n' << output;
      throw std::runtime_error("the test needs a program that ends with this code");
    }
    return says(texts, file, line).has(lines_with, file, line);
  }
  const Ended& finished(const std::vector<std::string>& texts = {}, const std::vector<Printed>& lines_with = {},
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    return exits(0, texts, lines_with, file, line);
  }
  /// Expects all of the texts in the output.
  const Ended& says(const std::vector<std::string>& texts, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) const {
    for (const std::string& text : texts) {
      if (output.find(text) == std::string::npos) {
        ADD_FAILURE_AT(file, line) << "lacks: " << text << '\n' << output;
      }
    }
    return *this;
  }
  /// Expects none of the texts in the output.
  const Ended& lacks(const std::vector<std::string>& texts, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) const {
    for (const std::string& text : texts) {
      if (output.find(text) != std::string::npos) {
        ADD_FAILURE_AT(file, line) << "has: " << text << '\n' << output;
      }
    }
    return *this;
  }
  /// Expects each text in the given number of lines.
  const Ended& has(const std::vector<Printed>& lines_with, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) const {
    for (const auto& [text, expected] : lines_with) {
      if (const int found = count(text); found != expected) {
        ADD_FAILURE_AT(file, line) << found << " lines, expected " << expected << ", have: " << text << '\n' << output;
      }
    }
    return *this;
  }
};

/// Runs a shell command with no input, for at most 100 seconds. The code is -1 when the command could not be started,
/// 128 + N when signal N ended it.
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

/// Runs a job of `mpirun` in which each rank runs one of the shell commands. The commands must not contain single
/// quotes. Does not use mpirun's "-np 1 A : -np 1 B", at which mpirun of Debian 13 (Open MPI 5.0.7) crashes.
inline Ended run_as_ranks(const std::string& mpirun, const std::vector<std::string>& commands) {
  std::string cases;
  for (std::size_t rank = 0; rank < commands.size(); ++rank) {
    cases += std::to_string(rank) + ") " + commands[rank] + ";; ";
  }
  return run_command(mpirun + " -np " + std::to_string(commands.size()) +
                     " sh -c 'case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in " + cases + "esac'");
}

/// Expects this exit code and one error line that has all of the words.
inline void expect_error(const Ended& ended, int code, const std::vector<std::string>& words,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const ::testing::ScopedTrace called(file, line, "called here");
  EXPECT_EQ(ended.code, code) << ended.output;
  const std::vector<std::string> lines = ended.error_lines();
  ASSERT_EQ(lines.size(), 1U) << ended.output;
  for (const std::string& word : words) {
    EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0] << "\nlacks: " << word;
  }
}
inline void expect_refused(const Ended& ended, const std::vector<std::string>& words,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  expect_error(ended, 2, words, file, line);
}

/// Options of a program, and words of the error line that they must cause.
struct Refusal {
  std::string options;
  std::vector<std::string> words;
};
/// run(options) runs a program. Expects for each Refusal that the program fails with an error line that has all its
/// words.
template <class Run>
void expect_refusals(const Run& run, const std::vector<Refusal>& refusals, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  for (const Refusal& refusal : refusals) {
    const ::testing::ScopedTrace called(file, line, refusal.options);
    expect_refused(run(refusal.options), refusal.words);
  }
}

}  // namespace lockstep::testing

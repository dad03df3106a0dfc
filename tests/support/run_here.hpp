#pragma once

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"

namespace lockstep::testing {

/// Splits a line into words as a shell does. The line may have spaces and 'single quotes', and no other syntax.
inline std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  bool quoted = false;
  bool within = false;
  for (const char c : line) {
    EXPECT_TRUE(quoted || std::string("$<>|&;\"`*").find(c) == std::string::npos) << "needs a shell: " << line;
    quoted = quoted != (c == '\'');
    if (c == ' ' && !quoted) {
      within = false;
      continue;
    }
    if (!within) {
      words.emplace_back();
      within = true;
    }
    if (c != '\'') {
      words.back() += c;
    }
  }
  return words;
}

/// Restores the handlers of signals in its destructor, because a program that ran in this process ignores some signals
/// when it ends.
class SignalsKept {
 public:
  SignalsKept() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      ::sigaction(kNumbers[i], nullptr, &before_[i]);
    }
  }
  ~SignalsKept() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      ::sigaction(kNumbers[i], &before_[i], nullptr);
    }
  }
  SignalsKept(const SignalsKept&) = delete;
  SignalsKept& operator=(const SignalsKept&) = delete;

 private:
  static constexpr std::array kNumbers{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ, SIGBUS, SIGCHLD};
  std::array<struct sigaction, kNumbers.size()> before_{};
};

/// Collects the text that is written to a descriptor, from the constructor to take().
class Written {
 public:
  explicit Written(int file) : file_(file), before_(::dup(file)), taken_(std::tmpfile()) {
    EXPECT_NE(taken_, nullptr);
    ::dup2(::fileno(taken_), file_);
  }
  std::string take() {
    ::dup2(before_, file_);
    ::close(before_);
    std::string text;
    std::rewind(taken_);
    std::array<char, 4096> block{};
    for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), taken_)) > 0;) {
      text.append(block.data(), n);
    }
    std::fclose(taken_);
    return text;
  }

 private:
  int file_;
  int before_;
  std::FILE* taken_;
};

/// Calls `program`, the main() of a program, in this process. lockstep_call_main() of CMake has given this main()
/// another name. A call takes milliseconds; starting a process takes tenths of a second. `command` has the program's
/// name and options, as words_of() reads them.
inline Ended run_here(int (*program)(int, char**), const std::string& command) {
  std::vector<std::string> words = words_of(command);
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const auto flush = [] {
    std::cout.flush();
    std::fflush(nullptr);
  };
  flush();
  Written output(STDOUT_FILENO);
  Written errors(STDERR_FILENO);
  const auto begin = std::chrono::steady_clock::now();
  Ended ended;
  {
    const SignalsKept signals;
    ended.code = program(static_cast<int>(words.size()), arguments.data());
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  flush();
  ended.printed = output.take();
  ended.output = ended.printed + errors.take();
  return ended;
}

}  // namespace lockstep::testing

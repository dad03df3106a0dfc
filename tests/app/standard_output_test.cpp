// Tests that a slow reader of standard output does not make a run wait. Each case runs in a process whose standard
// output is a pipe.
#include <lockstep/app/standard_output.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::nn {
namespace {

constexpr double kForEver = std::numeric_limits<double>::infinity();

bool never() {
  return false;
}

/// A child process whose standard output is a pipe. It exits with the result of `body`.
struct Child {
  pid_t pid = 0;
  int output = -1;  ///< end of the pipe that the parent reads

  explicit Child(const std::function<int()>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    std::fflush(nullptr);  // so that the child does not print GoogleTest's output again
    pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[1]);
      std::_Exit(body());
    }
    ::close(ends[1]);
    output = ends[0];
  }
  ~Child() {
    if (output >= 0) {
      ::close(output);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] std::string read_all() const {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t got = 0; (got = ::read(output, part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    return text;
  }
  [[nodiscard]] int code() const {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST(StandardOutput, WhatIsPrintedArrivesInOrder) {
  std::string expected;
  for (int i = 0; i < 20000; ++i) {
    expected += "line " + std::to_string(i) + "\n";
  }
  const Child child([] {
    StandardOutput output;
    for (int i = 0; i < 20000; ++i) {
      std::cout << "line " << i << '\n';
      if (i % 7 == 0) {
        std::cout.flush();
      }
    }
    output.finish(kForEver, never);
    return output.failed() ? 1 : 0;
  });
  EXPECT_TRUE(child.read_all() == expected);
  EXPECT_EQ(child.code(), 0);
}

TEST(StandardOutput, APipeThatNobodyReadsHoldsNothingUp) {
  const testing::TemporaryFolder folder;
  const std::string done = folder / "done";
  const Child child([&] {
    StandardOutput output;
    // Prints 7.5 MB, which is more than the pipe and the queue hold together. The process must not wait for a reader.
    for (int i = 0; i < 300000; ++i) {
      std::cout << "a line that nobody reads" << std::endl;
    }
    ::close(::open(done.c_str(), O_CREAT | O_WRONLY, 0600));
    output.finish(kForEver, never);
    std::cout << "the end" << std::endl;
    output.finish(kForEver, never);
    return 0;
  });
  const auto begin = std::chrono::steady_clock::now();
  while (::access(done.c_str(), F_OK) != 0) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    ::usleep(1000);
  }
  const std::string text = child.read_all();
  EXPECT_EQ(child.code(), 0);
  EXPECT_GT(text.size(), std::size_t{4} << 20);
  testing::expect_holds(text, "\n(lines were left out here, which nobody read)\nthe end\n");
}

TEST(StandardOutput, AReaderThatHasGoneIsNoSignal) {
  Child child([] {
    ::usleep(100000);
    StandardOutput output;
    std::cout << "to nobody" << std::endl;
    output.finish(kForEver, never);
    return output.failed() ? 7 : 0;
  });
  ::close(std::exchange(child.output, -1));
  EXPECT_EQ(child.code(), 7);
}

TEST(StandardOutput, AFullDiskIsAFailure) {
  const Child child([] {
    ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
    StandardOutput output;
    std::cout << "more than there is space" << std::endl;
    output.finish(kForEver, never);
    return output.failed() ? 7 : 0;
  });
  EXPECT_EQ(child.code(), 7);
}

TEST(StandardOutput, GivesUpWhenItIsToldTo) {
  const Child child([] {
    StandardOutput output;
    std::cout << std::string(std::size_t{1} << 20, 'x') << std::flush;
    const auto begin = std::chrono::steady_clock::now();
    output.finish(0.2, never);
    const bool waited = std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(200);
    output.finish(kForEver, [] { return true; });
    return waited ? 7 : 0;
  });
  EXPECT_EQ(child.code(), 7) << "nothing was read, and the process ended";
}

}  // namespace
}  // namespace lockstep::nn

#pragma once

#include <cstdio>
#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

// Helpers for tests that run a function in a child process.

namespace lockstep::testing {

/// Starts a child process that runs f. Its exit code is f's result, or 254 when f throws. No destructors of the
/// parent's objects run in the child.
template <class F>
[[nodiscard]] pid_t start_child(F&& f) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    int code = 254;
    try {
      code = f();
    } catch (...) {
    }
    std::_Exit(code);
  }
  return child;
}

/// Waits for a child. Returns its exit code, or minus the signal that ended it.
[[nodiscard]] inline int end_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace lockstep::testing

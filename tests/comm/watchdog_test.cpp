// When a watchdog speaks up and when not. Whole jobs that hang: tests/examples (failing_rank hang).
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <limits>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm/watchdog.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST(Watchdog, SaysOnceWhatWasBegunLast) {
  std::promise<std::string> text;
  std::atomic<int> calls = 0;
  const Clock::time_point begin = Clock::now();
  Watchdog watchdog(1, [&](const std::string& said) {
    if (++calls == 1) {
      text.set_value(said);
    }
  });
  watchdog.begin("reading the batch of step", 41);
  watchdog.begin("reducing gradients of step", 42);
  std::future<std::string> said = text.get_future();
  ASSERT_EQ(said.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(said.get(), "no progress for 1 s while reducing gradients of step 42");
  EXPECT_GE(Clock::now() - begin, milliseconds(1000));
  watchdog.begin("computing step", 43);
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_EQ(calls, 1);
}

TEST(Watchdog, WithoutANumber) {
  std::promise<std::string> text;
  Watchdog watchdog(0.05, [&](const std::string& said) { text.set_value(said); });
  watchdog.begin("writing a report");
  std::future<std::string> said = text.get_future();
  ASSERT_EQ(said.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(said.get(), "no progress for 0.05 s while writing a report");
}

TEST(Watchdog, IsSilentBeforeAnythingBegan) {
  std::atomic<int> calls = 0;
  const Watchdog watchdog(0.01, [&](const std::string&) { ++calls; });
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(calls, 0);
}

TEST(Watchdog, IsSilentWhileTheSameThingBeginsAgainAndAgain) {
  std::atomic<int> calls = 0;
  Watchdog watchdog(1, [&](const std::string&) { ++calls; });
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < milliseconds(2500)) {
    watchdog.begin("computing step", 1);
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(calls, 0);
}

TEST(Watchdog, GoesAtOnceAndSilently) {
  std::atomic<int> calls = 0;
  const Clock::time_point begin = Clock::now();
  {
    const Watchdog watchdog(3600, [&](const std::string&) { ++calls; });
  }
  EXPECT_LT(Clock::now() - begin, seconds(30));
  EXPECT_EQ(calls, 0);
}

// A batch system may stop a whole job for a while.
TEST(Watchdog, TimeInWhichTheProcessIsStoppedDoesNotCount) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Watchdog watchdog(1, [](const std::string&) { std::_Exit(exit_code::kWatchdog); });
    watchdog.begin("computing step", 1);
    std::raise(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(300));  // for looks at the time that has passed
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status)) << status;
  std::this_thread::sleep_for(milliseconds(1500));
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Watchdog, RefusesTimesThatAreNone) {
  for (const double value :
       {0.0, -1.0, 1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    testing::expect_holds(
        testing::error_of<UsageError>([&] { const Watchdog watchdog(value, [](const std::string&) {}); }),
        "expected at least 0.001");
  }
}

}  // namespace
}  // namespace lockstep::comm

// Tests when a watchdog reports and when it does not. tests/examples (failing_rank hang) tests complete jobs that hang.
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/launch/detail/status_table.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/child.hpp"
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

TEST(Watchdog, APauseDoesNotCount) {
  std::promise<std::string> text;
  Watchdog watchdog(0.2, [&](const std::string& said) { text.set_value(said); });
  watchdog.pause("waiting for the reader of standard output");
  std::future<std::string> said = text.get_future();
  EXPECT_EQ(said.wait_for(milliseconds(1000)), std::future_status::timeout);
  watchdog.begin("computing step", 1);
  ASSERT_EQ(said.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(said.get(), "no progress for 0.2 s while computing step 1");
}

TEST(Watchdog, EachLookIsTold) {
  std::mutex mutex;
  std::vector<Watchdog::Look> looks;
  {
    Watchdog watchdog(
        0.4, [](const std::string&) {},
        [&](const Watchdog::Look& found) {
          const std::lock_guard lock(mutex);
          looks.push_back(found);
        });
    watchdog.begin("computing step", 7);
    watchdog.where("1 of 3 buckets enqueued");
    std::this_thread::sleep_for(milliseconds(1500));
  }
  ASSERT_EQ(looks.size(), 10U + (looks.front().still_s == 0 ? 1 : 0)) << "the tenth without progress is the last";
  EXPECT_EQ(looks.back().doing, "computing step 7, 1 of 3 buckets enqueued");
  for (std::size_t i = 0; i < looks.size(); ++i) {
    EXPECT_EQ(looks[i].stalls, looks[i].still_s >= 0.1) << looks[i].still_s;
    EXPECT_TRUE(i == 0 || looks[i].still_s > looks[i - 1].still_s) << i;
  }
}

TEST(Watchdog, WhereBelongsToWhatWasBegunAndIsCut) {
  std::promise<std::string> text;
  Watchdog watchdog(0.2, [&](const std::string& said) { text.set_value(said); });
  watchdog.begin("computing step", 7);
  watchdog.where("1 of 3 buckets enqueued");
  watchdog.begin("computing step", 8);
  std::future<std::string> said = text.get_future();
  ASSERT_EQ(said.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(said.get(), "no progress for 0.2 s while computing step 8");
  std::promise<std::string> long_text;
  Watchdog other(0.2, [&](const std::string& told) { long_text.set_value(told); });
  other.begin("computing step", 8);
  other.where(std::string(100, 'x'));
  std::future<std::string> told = long_text.get_future();
  ASSERT_EQ(told.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(told.get(), "no progress for 0.2 s while computing step 8, " + std::string(95, 'x'));
}

TEST(Watchdog, WhatADeviceHasComeToIsToldAndIsProgress) {
  std::promise<std::string> text;
  detail::Progress progress{};
  std::atomic<int> bucket = 0;
  Watchdog watchdog(
      0.5, [&](const std::string& said) { text.set_value(said); }, {}, &progress);
  watchdog.begin("waiting for the device after step", 7);
  const int other = 0;
  watchdog.watch_device(&bucket,
                        [&] { return concat("on the device step 7: summing bucket ", bucket.load(), " of 99"); });
  watchdog.forget_device(&other);
  std::future<std::string> said = text.get_future();
  while (bucket < 20) {  // 2 s of progress on the device, without any on the host
    std::this_thread::sleep_for(milliseconds(100));
    ++bucket;
  }
  EXPECT_NE(said.wait_for(milliseconds(0)), std::future_status::ready) << "the device went on";
  ASSERT_EQ(said.wait_for(seconds(60)), std::future_status::ready);
  const std::string where = "waiting for the device after step 7; on the device step 7: summing bucket 20 of 99";
  EXPECT_EQ(said.get(), "no progress for 0.5 s while " + where);
  EXPECT_EQ(progress.text(), where);
  watchdog.forget_device(&bucket);
}

TEST(Watchdog, AForgottenDeviceIsNotAsked) {
  std::atomic<int> calls = 0;
  Watchdog watchdog(0.1, [](const std::string&) {});
  watchdog.watch_device(&watchdog, [] { return std::string("an earlier one"); });
  watchdog.watch_device(&calls, [&] {
    ++calls;
    return std::string();
  });
  while (calls == 0) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  watchdog.forget_device(&calls);
  const int before = calls;
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(calls, before);
}

TEST(Watchdog, ReportsAreAChoice) {
  for (const double after : {0.0, 0.1}) {
    std::atomic<bool> stalled = false;
    std::promise<void> over;
    {
      Watchdog watchdog(
          0.3, [&](const std::string&) { over.set_value(); },
          [&](const Watchdog::Look& found) { stalled = stalled || found.stalls; });
      watchdog.report_after(after);
      watchdog.begin("computing step", 7);
      ASSERT_EQ(over.get_future().wait_for(seconds(60)), std::future_status::ready);
    }
    EXPECT_EQ(stalled, after > 0);
  }
  Watchdog watchdog(1, [](const std::string&) {});
  for (const double value : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    testing::expect_holds(testing::error_of<UsageError>([&] { watchdog.report_after(value); }), "at least 0");
  }
}

detail::TablePlace place(int local_rank, int local_size) {
  return {
      .job = concat("test of ", ::getpid()), .rank = local_rank, .local_rank = local_rank, .local_size = local_size};
}

/// Starts a child process as local rank 1 of `size`, with the status table of this process. The child writes `doing` to
/// the table. It exits with the result of `then`, without destroying its table.
pid_t rank_1(int size, const char* doing, const std::function<int(detail::StatusTable&)>& then) {
  const detail::TablePlace here = place(1, size);
  return testing::start_child([&] {
    detail::StatusTable table(here);
    table.progress().begin(doing, detail::Progress::kNoNumber, true);
    table.alive();
    std::_Exit(then(table));
    return 0;
  });
}

TEST(StatusTable, NamesRanksThatSayNothing) {
  detail::StatusTable table(place(0, 3));
  std::vector<std::string> lines = table.silent(0);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].find("no word from rank 2 (host "), 0U) << lines[1];
  testing::expect_holds(lines[1], "): it has not begun");

  const pid_t stopped = rank_1(3, "computing step 7", [](auto&) { return std::raise(SIGSTOP); });
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(table.silent(3600).size(), 1U) << "rank 1 has written within the hour";
  lines = table.silent(0.5);
  ASSERT_EQ(lines.size(), 2U);
  testing::expect_holds(lines[0],
                        concat(", pid ", stopped, ") for 1 s: the process is stopped; it was computing step 7"));
  ASSERT_EQ(::kill(stopped, SIGKILL), 0);
  ASSERT_EQ(testing::end_of(stopped), -SIGKILL);
  testing::expect_holds(table.silent(0).front(), ": the process has ended; it was computing step 7");
  table.remove();
}

TEST(StatusTable, TheTableHasALineForEachRank) {
  detail::StatusTable table(place(0, 3));
  table.progress().begin("waiting for the gradients of step", 7, true);
  table.progress().begun_ns -= 12'000'000'000;
  const pid_t stopped = rank_1(3, "computing step 7, 1 of 3 buckets enqueued, layer2.0.conv2.weight",
                               [](auto&) { return std::raise(SIGSTOP); });
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  const std::vector<std::string> lines = table.table();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "rank 0: waiting for the gradients of step 7, for 12 s");
  EXPECT_EQ(lines[1],
            "rank 1: computing step 7, 1 of 3 buckets enqueued, layer2.0.conv2.weight, for 0 s, process is stopped");
  testing::expect_holds(lines[2], "rank 2: has not begun");
  ASSERT_EQ(::kill(stopped, SIGKILL), 0);
  ASSERT_EQ(testing::end_of(stopped), -SIGKILL);
  testing::expect_holds(table.table()[1], "process has ended");
  table.remove();
}

TEST(StatusTable, AStallIsToldByOneRankUntilItIsOver) {
  detail::StatusTable table(place(0, 2));
  for (int stall = 0; stall < 2; ++stall) {
    EXPECT_TRUE(table.first_of_stall());
    EXPECT_FALSE(table.first_of_stall());
    table.end_of_stall();
  }
  EXPECT_TRUE(table.first_to_tell()) << "of the end of the job";
  table.remove();
}

TEST(StatusTable, OneRankTells) {
  detail::StatusTable table(place(0, 2));
  EXPECT_TRUE(table.first_to_tell());
  EXPECT_FALSE(table.first_to_tell());
  const pid_t other = rank_1(2, "", [](detail::StatusTable& its) { return its.first_to_tell() ? 1 : 2; });
  EXPECT_EQ(testing::end_of(other), 2) << "this rank was first";
}

TEST(StatusTable, OneRankSpeaksForTheNodeOnceInAWhile) {
  detail::StatusTable table(place(0, 2));
  EXPECT_EQ(table.ranks(), 2);
  EXPECT_TRUE(table.claims_heartbeat(3600)) << "nobody has spoken";
  EXPECT_FALSE(table.claims_heartbeat(3600));
  const pid_t other = rank_1(2, "", [](detail::StatusTable& its) {
    if (its.claims_heartbeat(3600)) {
      return 1;
    }
    while (!its.claims_heartbeat(0.2)) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return 2;
  });
  EXPECT_EQ(testing::end_of(other), 2);
  EXPECT_FALSE(table.claims_heartbeat(3600)) << "rank 1 sends the heartbeats";
}

TEST(StatusTable, HasNoNameOnceAllRanksAreThere) {
  const auto names = [] {
    std::string list;
    FILE* pipe = ::popen("ls /dev/shm", "r");
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
      list += static_cast<char>(c);
    }
    ::pclose(pipe);
    return list;
  };
  const std::string name = concat(std::hash<std::string>()(place(0, 2).job), "-2\n");
  const detail::StatusTable table(place(0, 2));
  EXPECT_NE(names().find(name), std::string::npos);
  const detail::StatusTable other(place(1, 2));
  EXPECT_EQ(names().find(name), std::string::npos);
}

// Every user may write to /dev/shm, so a file there may come from another user. StatusTable must refuse such a file.
TEST(StatusTable, AFileThatIsNotThisUsersAloneIsRefused) {
  const std::string victim = concat("/dev/shm/lockstep-test-", ::getpid());
  const std::string path =
      concat("/dev/shm/lockstep-", ::geteuid(), '-', std::hash<std::string>()(place(0, 2).job), "-2");
  const auto refused = [&](const char* what) {
    EXPECT_THROW(detail::StatusTable table(place(0, 2)), FileError) << what;
    ASSERT_EQ(::unlink(path.c_str()), 0) << what;
  };
  write_file(victim, "mine");
  ASSERT_EQ(::link(victim.c_str(), path.c_str()), 0);
  refused("another name of a file");
  EXPECT_EQ(read_file(victim, 100), "mine");
  ASSERT_EQ(::symlink(victim.c_str(), path.c_str()), 0);
  refused("a link");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  refused("a FIFO");
  if (::geteuid() == 0) {
    write_file(path, "");
    ASSERT_EQ(::chown(path.c_str(), 1, 1), 0);
    refused("another user's");
  }
  ASSERT_EQ(::unlink(victim.c_str()), 0);
}

TEST(StatusTable, ItsPlaceIsTheLaunchers) {
  const Launch launch{.source = LaunchSource::mpi, .rank = 5, .size = 8, .local_rank = 1, .local_size = 4};
  const auto here = detail::table_place(launch, {{"PMIX_NAMESPACE", "77"}});
  ASSERT_TRUE(here);
  EXPECT_EQ(here->rank, 5);
  EXPECT_EQ(here->local_rank, 1);
  EXPECT_EQ(here->local_size, 4);
  EXPECT_FALSE(here->one_node);
  EXPECT_NE(here->job, detail::table_place(launch, {{"PMIX_NAMESPACE", "78"}})->job);
  EXPECT_EQ(detail::table_place(launch, {})->job, detail::table_place(launch, {})->job) << "children of one launcher";
  EXPECT_NE(detail::table_place(launch, {{"TORCHELASTIC_RESTART_COUNT", "0"}})->job,
            detail::table_place(launch, {{"TORCHELASTIC_RESTART_COUNT", "1"}})->job)
      << "torchrun's second start";
  EXPECT_FALSE(detail::table_place({}, {})) << "alone";
  EXPECT_FALSE(detail::table_place({.rank = 1, .size = 2}, {})) << "the launcher does not tell";
}

// A batch system may stop a complete job for a while. The watchdog must not count this time as a stall.
TEST(Watchdog, TimeInWhichTheProcessIsStoppedDoesNotCount) {
  const pid_t child = testing::start_child([] {
    Watchdog watchdog(1, [](const std::string&) { std::_Exit(exit_code::kWatchdog); });
    watchdog.begin("computing step", 1);
    std::raise(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(300));  // lets the watchdog check the clock
    return 0;
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status)) << status;
  std::this_thread::sleep_for(milliseconds(1500));
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  EXPECT_EQ(testing::end_of(child), 0);
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

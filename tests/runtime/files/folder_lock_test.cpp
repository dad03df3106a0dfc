#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>

#include "tests/support/child.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {
namespace {

TEST(FolderLock, RefusesASecondRunAndNamesTheFirst) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  EXPECT_FALSE(FolderLock::known(folder / "run"));
  std::optional<FolderLock> first(std::in_place, folder / "run");
  first->name_holder();
  EXPECT_TRUE(FolderLock::known(folder / "run"));
  expect_error<UsageError>([&] { const FolderLock second(folder / "run"); },
                           {folder / "run", "another run writes there (pid " + std::to_string(::getpid()) + " on "});
  expect_holds(error_of<UsageError>([&] { const FolderLock third(folder / "run"); }), std::to_string(::getpid()));
  first.reset();
  EXPECT_TRUE(FolderLock::known(folder / "run"));
  const FolderLock next(folder / "run");
}

// A run takes the lock before it writes its name to the file. In between, the file still has the name of an earlier
// run, which the error must not give.
TEST(FolderLock, NamesNoRunThatHasEnded) {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  std::filesystem::create_directories(path);
  {
    FolderLock former(path);
    former.name_holder();
  }
  const std::string former = read_file(path + "/run.lock", 100);
  expect_holds(former, "pid ");
  FolderLock next(path);
  const auto refused = [&] { return error_of<UsageError>([&] { const FolderLock second(path); }); };
  expect_holds(refused(), "another run writes there (a process that is not known), ");
  EXPECT_EQ(read_file(path + "/run.lock", 100), former) << "a run without a name changes nothing";
  next.name_holder();
  for (int i = 0; i < 2; ++i) {
    expect_holds(refused(), "another run writes there (pid " + std::to_string(::getpid()) + " on ");
  }
}

TEST(FolderLock, OfOneFolderIsNoneOfAnother) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  std::filesystem::create_directories(folder / "b");
  const FolderLock a(folder / "a");
  const FolderLock b(folder / "b");
}

TEST(FolderLock, EndsWithAProcessThatIsKilled) {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  std::filesystem::create_directories(path);
  int locked[2];
  ASSERT_EQ(::pipe(locked), 0);
  const pid_t child = start_child([&]() -> int {
    FolderLock lock(path);
    lock.name_holder();
    [[maybe_unused]] const ssize_t sent = ::write(locked[1], "x", 1);
    for (;;) {
      ::pause();
    }
  });
  ::close(locked[1]);
  char byte = 0;
  ASSERT_EQ(::read(locked[0], &byte, 1), 1) << "the child could not lock";
  ::close(locked[0]);
  expect_holds(error_of<UsageError>([&] { const FolderLock lock(path); }), "pid " + std::to_string(child) + " on ");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(end_of(child), -SIGKILL);
  const FolderLock lock(path);
}

// A lock file may be a link to another user's file. FolderLock must not write to that file.
TEST(FolderLock, WritesNothingThroughALink) {
  const TemporaryFolder folder;
  const auto content = [](const std::string& path) { return read_file(path, 100); };
  for (const char* name : {"soft", "nowhere", "hard"}) {
    std::filesystem::create_directories(folder / name);
  }
  write_file(folder / "victim", "mine");
  std::filesystem::create_symlink(folder / "victim", folder / "soft/run.lock");
  std::filesystem::create_symlink(folder / "made", folder / "nowhere/run.lock");
  std::filesystem::create_hard_link(folder / "victim", folder / "hard/run.lock");
  for (const char* name : {"soft", "nowhere"}) {
    EXPECT_TRUE(FolderLock::known(folder / name));
    expect_holds(error_of<DataError>([&] { const FolderLock lock(folder / name); }),
                 "/run.lock: is a link, expected a");
  }
  FolderLock(folder / "hard").name_holder();
  EXPECT_EQ(content(folder / "victim"), "mine");
  EXPECT_FALSE(file_exists(folder / "made"));
}

TEST(FolderLock, AFolderThatIsNotThere) {
  const TemporaryFolder folder;
  expect_holds(error_of<DataError>([&] { const FolderLock lock(folder / "none"); }),
               "none/run.lock: cannot be opened: No such");
}

}  // namespace
}  // namespace lockstep::testing

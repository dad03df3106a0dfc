#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using testing::error_of;
using testing::expect_holds;

TEST(FolderLock, RefusesASecondRunAndNamesTheFirst) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  EXPECT_FALSE(FolderLock::known(folder / "run"));
  std::optional<FolderLock> first(std::in_place, folder / "run");
  EXPECT_TRUE(FolderLock::known(folder / "run"));
  const std::string text = error_of<UsageError>([&] { const FolderLock second(folder / "run"); });
  expect_holds(text, folder / "run");
  expect_holds(text, "another run writes there (pid " + std::to_string(::getpid()) + " on ");
  expect_holds(error_of<UsageError>([&] { const FolderLock third(folder / "run"); }), std::to_string(::getpid()));
  first.reset();
  EXPECT_TRUE(FolderLock::known(folder / "run"));
  const FolderLock next(folder / "run");
}

TEST(FolderLock, OfOneFolderIsNoneOfAnother) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  std::filesystem::create_directories(folder / "b");
  const FolderLock a(folder / "a");
  const FolderLock b(folder / "b");
}

TEST(FolderLock, EndsWithAProcessThatIsKilled) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run";
  std::filesystem::create_directories(path);
  int locked[2];
  ASSERT_EQ(::pipe(locked), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const FolderLock lock(path);
    [[maybe_unused]] const ssize_t sent = ::write(locked[1], "x", 1);
    for (;;) {
      ::pause();
    }
  }
  ::close(locked[1]);
  char byte = 0;
  ASSERT_EQ(::read(locked[0], &byte, 1), 1) << "the child could not lock";
  ::close(locked[0]);
  expect_holds(error_of<UsageError>([&] { const FolderLock lock(path); }), "pid " + std::to_string(child) + " on ");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const FolderLock lock(path);
}

TEST(FolderLock, AFolderThatIsNotThere) {
  const testing::TemporaryFolder folder;
  expect_holds(error_of<DataError>([&] { const FolderLock lock(folder / "none"); }),
               "none/run.lock: cannot be opened: No such");
}

}  // namespace
}  // namespace lockstep

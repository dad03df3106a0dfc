#include <lockstep/runtime/files/atomic_folder.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/child.hpp"
#include "tests/support/files.hpp"

namespace lockstep::testing {
namespace {

using Replace = AtomicFolder::Replace;

constexpr int kFiles = 3;

// Writes version v: three files of different lengths that all hold v.
void write_version(const std::string& path, int version, Replace replace, int keep = 0) {
  AtomicFolder folder(path, replace);
  for (int i = 0; i < kFiles; ++i) {
    write_file(folder.file("part" + std::to_string(i)),
               std::to_string(version) + std::string(static_cast<std::size_t>(10'000 * i), '.'));
  }
  folder.commit(keep);
}

// Returns the version of a complete folder; -1 when it is missing, mixed or incomplete.
int version_of(const std::string& folder) {
  if (folder.empty() || !file_exists(folder) || count_entries(folder) != kFiles) {
    return -1;
  }
  int version = -1;
  for (int i = 0; i < kFiles; ++i) {
    const std::string text = get_file(folder + "/part" + std::to_string(i));
    const int found = text.empty() ? -1 : std::atoi(text.c_str());
    if (text.size() != std::to_string(found).size() + static_cast<std::size_t>(10'000 * i) ||
        (i > 0 && found != version)) {
      return -1;
    }
    version = found;
  }
  return version;
}

class AtomicFolderTest : public ::testing::TestWithParam<Replace> {};
INSTANTIATE_TEST_SUITE_P(Both, AtomicFolderTest, ::testing::Values(Replace::swap, Replace::two_renames),
                         [](const auto& tested) { return tested.param == Replace::swap ? "Swap" : "TwoRenames"; });

TEST_P(AtomicFolderTest, ReplacesAndLeavesNothingBehind) {
  const TemporaryFolder root;
  const std::string path = root / "deep/run/last/";  // missing parents are made, and the last slash is ignored
  for (int version = 0; version < 3; ++version) {
    write_version(path, version, GetParam());
    EXPECT_EQ(version_of(find_folder(path)), version);
    EXPECT_EQ(find_folder(path), root / "deep/run/last");
    EXPECT_EQ(count_entries(root / "deep/run"), 1U);
  }
}

TEST_P(AtomicFolderTest, WithoutCommitNothingChanges) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  {
    AtomicFolder folder(path, GetParam());
    write_file(folder.file("part0"), "x");
  }
  EXPECT_EQ(count_entries(root.path()), 0U);
  write_version(path, 7, GetParam());
  try {
    AtomicFolder folder(path, GetParam());
    write_file(folder.file("part0"), "x");
    throw DataError("stop");
  } catch (const DataError&) {
  }
  EXPECT_EQ(version_of(path), 7);
  EXPECT_EQ(count_entries(root.path()), 1U);
}

// A child writes version after version and is killed at a random moment. A complete folder must exist at any time, at
// least as new as the last version that the child announced. The next writer must delete incomplete folders. If names
// can be swapped, the earlier versions must exist, too.
TEST_P(AtomicFolderTest, SurvivesKillAtAnyMoment) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  const int keep = GetParam() == Replace::swap ? 2 : 0;
  int last = keep;
  for (int version = 0; version <= last; ++version) {
    write_version(path, version, GetParam(), keep);
  }
  Random random(static_cast<std::uint64_t>(GetParam()), RandomUse::test);
  for (int round = 0; round < 30; ++round) {
    int announce[2];
    ASSERT_EQ(::pipe(announce), 0);
    const pid_t child = start_child([&] {
      ::close(announce[0]);
      for (int version = last + 1;; ++version) {
        write_version(path, version, GetParam(), keep);
        if (::write(announce[1], &version, sizeof(version)) != sizeof(version)) {
          return 1;
        }
      }
    });
    ::close(announce[1]);
    int announced = last;
    ASSERT_EQ(::read(announce[0], &announced, sizeof(announced)), static_cast<ssize_t>(sizeof(announced)));
    // The child is killed at some time within the next versions.
    ::usleep(random.below(4000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(end_of(child), -SIGKILL) << "the child ended by itself";
    for (int more = 0; ::read(announce[0], &more, sizeof(more)) == static_cast<ssize_t>(sizeof(more));) {
      announced = more;
    }
    ::close(announce[0]);
    const int found = version_of(find_folder(path));
    EXPECT_GE(found, announced) << "round " << round;
    EXPECT_LE(found, announced + 1) << "round " << round;
    last = found;
    int newer = found;
    for (int number = 1; number <= keep; ++number) {
      const int earlier = version_of(concat(path, '.', number));
      EXPECT_GE(earlier, 0) << "round " << round << ", earlier version " << number;
      EXPECT_LT(earlier, newer) << "round " << round << ", earlier version " << number;
      newer = earlier;
    }
  }
  recover_folder(path);
  EXPECT_EQ(version_of(path), last);
  EXPECT_EQ(count_entries(root.path()), static_cast<std::size_t>(1 + keep));
}

// A child writes folders and deletes them, and is killed at a random moment. Each folder is then complete or absent.
TEST(AtomicFolder, AFolderThatIsDeletedIsNeverHalfThere) {
  const TemporaryFolder root;
  Random random(5, RandomUse::test);
  int deleted = 0;
  for (int round = 0; round < 30; ++round) {
    const auto path = [&](int number) { return root / concat("best-", number); };
    const pid_t child = start_child([&]() -> int {
      for (int number = 1;; number = number % 3 + 1) {
        write_version(path(number), number, Replace::swap);
        remove_folder(path(number % 3 + 1));
      }
    });
    ::usleep(2000 + random.below(4000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(end_of(child), -SIGKILL) << "the child ended by itself";
    std::size_t there = 0;
    for (int number = 1; number <= 3; ++number) {
      const std::string found = find_folder(path(number));
      deleted += found.empty() ? 1 : 0;
      there += found.empty() ? 0 : 1;
      EXPECT_TRUE(found.empty() || version_of(found) == number) << "round " << round;
      recover_folder(path(number));
      EXPECT_EQ(find_folder(path(number)), found);
    }
    EXPECT_EQ(count_entries(root.path()), there) << "round " << round;
  }
  EXPECT_GT(deleted, 0);
  EXPECT_NO_THROW(remove_folder(root / "nothing"));
  put_file(root / "best-1.old-mine", "a file of a user");
  remove_folder(root / "best-1");
  EXPECT_TRUE(file_exists(root / "best-1.old-mine"));
}

// Control: version_of() must return -1 for a folder in which a file is missing, cut short or of another version.
TEST(AtomicFolder, VersionsThatAreNotWholeAreSeen) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  write_version(path, 3, Replace::swap);
  ASSERT_EQ(version_of(path), 3);
  const std::string part = get_file(path + "/part1");
  put_file(path + "/part1", part.substr(0, 100));
  EXPECT_EQ(version_of(path), -1);
  put_file(path + "/part1", "4" + part.substr(1));
  EXPECT_EQ(version_of(path), -1);
  std::filesystem::remove(path + "/part1");
  EXPECT_EQ(version_of(path), -1);
}

// A kill between two renames leaves the old folder under a temporary name. find_folder() must find this folder, and
// recover_folder() must rename it back.
TEST(AtomicFolder, FindsAndRecoversTheOldName) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  write_version(path, 4, Replace::swap);
  std::filesystem::rename(path, path + ".old-host-1-r0123456789abcdef");
  std::filesystem::create_directory(path + ".tmp-host-1-r0123456789abcdef");
  EXPECT_EQ(find_folder(path), path + ".old-host-1-r0123456789abcdef");
  EXPECT_EQ(version_of(find_folder(path)), 4);
  recover_folder(path);
  EXPECT_EQ(find_folder(path), path);
  EXPECT_EQ(version_of(path), 4);
  EXPECT_EQ(count_entries(root.path()), 1U);
  // A folder whose name only begins with this folder's name must stay.
  write_version(root / "last2", 5, Replace::swap);
  write_version(path, 6, Replace::swap);
  EXPECT_EQ(version_of(root / "last2"), 5);
  EXPECT_EQ(find_folder(root / "none"), "");
}

TEST_P(AtomicFolderTest, KeepsEarlierVersions) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  for (int version = 1; version <= 4; ++version) {
    write_version(path, version, GetParam(), 2);
    EXPECT_EQ(version_of(path), version);
    EXPECT_EQ(version_of(path + ".1"), version > 1 ? version - 1 : -1);
    EXPECT_EQ(version_of(path + ".2"), version > 2 ? version - 2 : -1);
    EXPECT_EQ(count_entries(root.path()), static_cast<std::size_t>(std::min(version, 3)));
  }
  write_version(path, 5, GetParam(), 1);
  EXPECT_EQ(version_of(path + ".1"), 4);
  EXPECT_EQ(version_of(path + ".2"), 2) << "fewer from now on: what is there already stays";
  write_version(path, 6, GetParam());
  EXPECT_EQ(version_of(path + ".1"), 4);
}

TEST(AtomicFolder, FoldersWithNamesOfAUserStay) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  const std::vector<std::string> names{"last.old-mine",      "last.tmp-",           "last.old-2-3",
                                       "last.tmp-a-b-1",     "last.old-2026-11-26", "last.old-run-3-1",
                                       "last.tmp-host-12-0", "last.old-a-1-r0"};
  for (const std::string& name : names) {
    write_version(root / name, 1, Replace::swap);
  }
  EXPECT_EQ(find_folder(path), "");
  write_version(path, 2, Replace::swap);
  write_version(path, 3, Replace::two_renames);
  recover_folder(path);
  EXPECT_EQ(count_entries(root.path()), names.size() + 1);
  for (const std::string& name : names) {
    EXPECT_EQ(version_of(root / name), 1) << name;
  }
}

TEST(AtomicFolder, BadPathsAreRefused) {
  const TemporaryFolder root;
  write_file(root / "file", "x");
  expect_holds(error_of<DataError>([&] { AtomicFolder(root / "file"); }), "is not a folder");
  expect_holds(error_of<DataError>([&] { AtomicFolder(root / "file/last"); }), root / "file");
  for (const char* path : {"", "/", "."}) {
    expect_holds(error_of<DataError>([&] { AtomicFolder{path}; }), "expected the path of a folder");
  }
  AtomicFolder folder(root / "last");
  for (const char* name : {"", ".", "..", "a/b", "../a"}) {
    expect_holds(error_of<DataError>([&] { (void)folder.file(name); }), "expected a plain name");
  }
  folder.commit();
  expect_holds(error_of<StateError>([&] { folder.commit(); }), "twice");
}

// Root may write everywhere. The test therefore runs in a child that gives up root's rights, if it has them.
TEST(AtomicFolder, UnwritableFolderIsNamed) {
  const TemporaryFolder root;
  namespace fs = std::filesystem;
  fs::permissions(root.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const int end = end_of(start_child([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) {
      return 77;
    }
    const std::string text = error_of<DataError>([&] { AtomicFolder(root / "last"); });
    return text.find(root / "last") == 0 && text.find("cannot be made: Permission denied") != std::string::npos ? 42
                                                                                                                : 43;
  }));
  fs::permissions(root.path(), fs::perms::owner_all);
  if (end == 77) {
    GTEST_SKIP() << "runs as root and cannot become another user";
  }
  EXPECT_EQ(end, 42);
}

// /proc takes no new folders, not even from root.
TEST(AtomicFolder, FileSystemsThatRefuseAreNamed) {
  expect_holds(error_of<FileError>([] { AtomicFolder("/proc/lockstep-test/last"); }), "/proc/lockstep-test");
}

// Runs in a child, because the limit stays for the whole process.
TEST(AtomicFolder, NoSpaceLeavesTheOldFolder) {
  const TemporaryFolder root;
  const std::string path = root / "last";
  write_version(path, 1, Replace::swap);
  const pid_t child = start_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};  // files end at 5000 bytes: write() writes less, then gives EFBIG
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text = error_of<DataError>([&] { write_version(path, 2, Replace::swap); });
    return text.find("cannot be written") != std::string::npos ? 42 : 43;
  });
  EXPECT_EQ(end_of(child), 42);
  EXPECT_EQ(version_of(path), 1);
  EXPECT_EQ(count_entries(root.path()), 1U);
}

TEST(OutputFile, NeverOverwritesAndLeavesNoHalfFile) {
  const TemporaryFolder root;
  const std::string path = root / "file";
  {
    OutputFile file(path);
    file.write("half");
  }
  EXPECT_FALSE(file_exists(path));
  OutputFile file(path);
  file.write("whole");
  file.finish();
  expect_holds(error_of<StateError>([&] { file.finish(); }), "twice");
  expect_holds(error_of<StateError>([&] { file.write("x"); }), "after finish");
  expect_holds(error_of<DataError>([&] { OutputFile{path}; }), path + ": cannot be created: File exists");
  EXPECT_EQ(read_file(path, 5), "whole");
  expect_holds(error_of<DataError>([&] { (void)read_file(path, 4); }), "has 5 bytes, expected at most 4");
}

TEST(InputFile, ErrorsNameThePathAndTheByte) {
  const TemporaryFolder root;
  expect_holds(error_of<FileError>([&] { InputFile{root / "none"}; }), "none: cannot be opened: No such file");
  expect_holds(error_of<DataError>([&] { InputFile{root.path()}; }), "is not a regular file");
  write_file(root / "file", "0123456789");
  const InputFile file(root / "file");
  std::string text(4, ' ');
  file.read(3, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "3456");
  expect_holds(error_of<DataError>([&] { file.read(8, std::as_writable_bytes(std::span(text))); }),
               "ends at byte 10, expected 2 more bytes");
}

}  // namespace
}  // namespace lockstep::testing

// Tests mapped files, files that are replaced atomically, and checksums.
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/runtime/files/crc32.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"
#include "tests/support/resident.hpp"

namespace lockstep::testing {
namespace {

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(MappedFile, GivesItsBytes) {
  const TemporaryFolder folder;
  std::string content;
  for (int i = 0; i < 20000; ++i) {
    content += static_cast<char>(i * 31 % 251);
  }
  put_file(folder / "a", content);
  const MappedFile file(folder / "a");
  EXPECT_EQ(file.size(), content.size());
  EXPECT_EQ(file.path(), folder / "a");
  for (const std::size_t at : {0U, 1U, 4095U, 4096U, 4097U, 19999U}) {
    EXPECT_EQ(text(file.bytes(at, 1)), content.substr(at, 1)) << at;
    EXPECT_EQ(text(file.bytes(at, content.size() - at)), content.substr(at)) << at;
  }
  EXPECT_TRUE(file.bytes(content.size(), 0).empty());
}

// The file must be on a disk. In a memory file system all pages are always resident, so ahead() would change nothing.
TEST(MappedFile, WhatIsWantedAheadIsRead) {
  constexpr std::size_t kBytes = std::size_t{1} << 22;
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  write_file(path, std::string(kBytes, 'x'));
  const MappedFile file(path);
  forget(path);
  if (!some_absent(path, kBytes / 2, kBytes)) {
    GTEST_SKIP() << "the system does not forget files in this folder";
  }
  const std::vector<bool> before = resident(path);
  file.ahead(kBytes, 5);  // a range outside of the file is ignored
  file.ahead(~std::uint64_t{0}, ~std::uint64_t{0});
  EXPECT_EQ(resident(path), before);
  file.ahead(kBytes / 2 + 1, ~std::uint64_t{0});
  EXPECT_TRUE(becomes_resident(path, kBytes / 2, kBytes));
  EXPECT_EQ(resident(path)[0], before[0]);
  EXPECT_EQ(text(file.bytes(kBytes - 1, 1)), "x");
  const MappedFile empty([&] {
    write_file(folder / "empty", "");
    return folder / "empty";
  }());
  empty.ahead(0, 1);
}

TEST(MappedFile, WhatLiesOutsideIsRefused) {
  const TemporaryFolder folder;
  put_file(folder / "a", std::string(10000, 'x'));
  const MappedFile file(folder / "a");
  expect_holds(error_of<DataError>([&] { (void)file.bytes(9999, 2); }),
               "has 10000 bytes, expected 2 bytes from byte 9999 on");
  (void)error_of<DataError>([&] { (void)file.bytes(10001, 0); });
  (void)error_of<DataError>([&] { (void)file.bytes(1, ~std::uint64_t{0}); });
  std::filesystem::resize_file(folder / "a", 100);
  expect_holds(error_of<DataError>([&] { (void)file.bytes(5000, 1); }),
               "has 100 bytes, expected at least the 10000 that it had");
}

TEST(MappedFile, WhatIsNoFileIsRefused) {
  const TemporaryFolder folder;
  expect_holds(error_of<FileError>([&] { const MappedFile file(folder / "none"); }), "cannot be opened");
  expect_holds(error_of<DataError>([&] { const MappedFile file(folder.path()); }), "is not a regular file");
  put_file(folder / "empty", "");
  const MappedFile empty(folder / "empty");
  EXPECT_TRUE(empty.bytes(0, 0).empty());
  (void)error_of<DataError>([&] { (void)empty.bytes(0, 1); });
}

TEST(AtomicFile, AppearsAtOnceOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  put_file(path, "old");
  {
    AtomicFile file(path);
    file.write(bytes("new"));
    EXPECT_EQ(get_file(path), "old");
    EXPECT_EQ(count_entries(folder.path()), 2U);
  }
  EXPECT_EQ(get_file(path), "old");
  EXPECT_EQ(count_entries(folder.path()), 1U) << "what was not finished is deleted";
  AtomicFile file(path);
  file.write(bytes("ne"));
  file.write(bytes("w"));
  file.commit();
  EXPECT_EQ(get_file(path), "new");
  EXPECT_EQ(count_entries(folder.path()), 1U);
  (void)error_of<StateError>([&] { file.write(bytes("x")); });
  expect_holds(error_of<FileError>([&] { const AtomicFile none(folder / "none/a"); }), "cannot be created");
}

// A name such as /dev/stderr stands for an open file, for example a log. Root could replace it, so replace_file() must
// refuse it.
TEST(AtomicFile, ANameOfAnOpenFileStays) {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  write_file(log, "old");
  const InputFile open(log);
  std::string descriptor;  // path of the open file in /proc/self/fd
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::equivalent(entry.path(), log, ignored)) {
      descriptor = entry.path().string();
    }
  }
  ASSERT_NE(descriptor, "");
  const std::string link = folder / "stderr";
  std::filesystem::create_symlink(descriptor, link);
  for (const std::string& name : {link, descriptor}) {
    EXPECT_TRUE(names_descriptor(name));
    expect_holds(error_of<FileError>([&] { replace_file(name, "new"); }),
                 name + ": is a name of the system for an open file");
  }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(log, 100), "old");
  EXPECT_FALSE(names_descriptor(log));
}

// The test uses a FIFO and not a device, because root could really replace a device.
TEST(AtomicFile, WhatIsNoFileIsNotReplaced) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  fs::create_directory(folder / "folder");
  fs::create_symlink("fifo", folder / "to fifo");
  fs::create_symlink("folder", folder / "to folder");
  fs::create_symlink("/dev/null", folder / "to null");
  for (const auto& [name, kind] : std::vector<std::pair<std::string, std::string>>{{"fifo", "a FIFO"},
                                                                                   {"to fifo", "a FIFO"},
                                                                                   {"folder", "a folder"},
                                                                                   {"to folder", "a folder"},
                                                                                   {"to null", "a device"}}) {
    const std::string path = folder / name;
    const fs::file_type before = fs::symlink_status(path).type();
    for (const std::string& error : {error_of<FileError>([&] { const AtomicFile file(path); }),
                                     error_of<FileError>([&] { replace_file(path, "new"); })}) {
      EXPECT_EQ(error, path + ": is " + kind + ", expected a regular file to replace, or nothing");
    }
    EXPECT_EQ(fs::symlink_status(path).type(), before) << name;
  }
  EXPECT_EQ(count_entries(folder.path()), 5U);
}

TEST(AtomicFile, TakesThePlaceOfALinkAndLeavesWhatItLeadsTo) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  put_file(folder / "file", "old");
  for (const char* target : {"file", "nothing"}) {
    const std::string link = folder / (std::string("to ") + target);
    fs::create_symlink(target, link);
    replace_file(link, "new");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(link))) << target;
    EXPECT_EQ(get_file(link), "new");
  }
  EXPECT_EQ(get_file(folder / "file"), "old");
  EXPECT_FALSE(fs::exists(folder / "nothing"));
}

TEST(Crc32, IsZlibs) {
  const std::string check = "123456789";  // the check value of CRC-32/ISO-HDLC
  EXPECT_EQ(crc32_of(bytes(check)), 0xCBF43926U);
  EXPECT_EQ(crc32_of(bytes("56789"), crc32_of(bytes("1234"))), 0xCBF43926U);
  EXPECT_EQ(crc32_of({}), 0U);
  EXPECT_EQ(crc32_of({}, 7), 7U);
}

/// Computes the checksum bit by bit, as in its definition.
std::uint32_t crc_by_bits(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  return ~crc;
}

// zlib or libdeflate may use different instructions for the bytes before an aligned address, for long blocks, and for
// the last bytes. In all these cases the checksum must be the same as bit by bit.
TEST(Crc32, IsTheDefinitionsForAllLengthsAndAlignments) {
  std::string content(40000, ' ');
  std::uint32_t state = 1;
  for (char& c : content) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  const auto all = bytes(content);
  for (std::size_t begin = 0; begin < 64; ++begin) {
    for (std::size_t length = 0; length < 300; ++length) {
      const auto part = all.subspan(begin, length);
      ASSERT_EQ(crc32_of(part), crc_by_bits(part)) << length << " bytes from " << begin;
    }
  }
  for (const std::size_t length : {511, 512, 513, 1023, 4095, 4096, 4097, 16385, 32771}) {
    for (const std::size_t begin : {0, 1, 3, 8, 15, 16, 31, 33, 63}) {
      const auto part = all.subspan(begin, length);
      const std::uint32_t expected = crc_by_bits(part);
      ASSERT_EQ(crc32_of(part), expected) << length << " bytes from " << begin;
      for (const std::size_t split :
           {std::size_t{0}, std::size_t{1}, std::size_t{17}, length / 2, length - 1, length}) {
        ASSERT_EQ(crc32_of(part.subspan(split), crc32_of(part.first(split))), expected)
            << length << " bytes from " << begin << ", continued after " << split;
      }
    }
  }
}

TEST(Crc32, OfAFileGoesOnFromPieceToPiece) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  std::string content((std::size_t{1} << 21) + 12345, ' ');
  for (std::size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * i / 7);
  }
  put_file(path, content);
  const InputFile file(path);
  const auto all = bytes(content);
  EXPECT_EQ(crc32_of(file, 0, content.size()), crc_by_bits(all));
  EXPECT_EQ(crc32_of(file, 3, content.size() - 5), crc_by_bits(all.subspan(3, content.size() - 5)));
  EXPECT_EQ(crc32_of(file, 9, 0), 0U);
  (void)error_of<DataError>([&] { (void)crc32_of(file, 9, content.size()); });
}

// A process in another container may have the same process number and even the same host name. Its temporary file must
// stay.
TEST(AtomicFile, LeavesAFileOfAnotherProcessOfItsNumber) {
  const TemporaryFolder folder;
  const std::string theirs = concat(folder / "a", ".tmp-", ::getpid());
  put_file(theirs, "begun");
  replace_file(folder / "a", "mine");
  EXPECT_EQ(read_file(theirs, 100), "begun");
  EXPECT_EQ(read_file(folder / "a", 100), "mine");
  std::set<std::string> suffixes;
  for (int i = 0; i < 100; ++i) {
    suffixes.insert(unique_suffix());
  }
  EXPECT_EQ(suffixes.size(), 100U);
  EXPECT_TRUE(is_unique_suffix(*suffixes.begin())) << *suffixes.begin();
  for (const char* other : {"", "r0123456789abcdef", "1-r0123456789abcdef", "a-1-r0123456789abcdeg",
                            "a-b-r0123456789abcdef", "a-1-r0123456789abcde", "a--r0123456789abcdef", "2026-11-26"}) {
    EXPECT_FALSE(is_unique_suffix(other)) << other;
  }
}

TEST(WriteAll, WaitsWhereAPipeThatDoesNotBlockIsFull) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK), 0);
  const std::vector<std::byte> sent(std::size_t{1} << 20, std::byte{7});
  std::size_t got = 0;
  std::thread reader([&] {
    std::vector<std::byte> part(std::size_t{1} << 16);
    while (got < sent.size()) {
      const ssize_t n = ::read(ends[0], part.data(), part.size());
      got += n > 0 ? static_cast<std::size_t>(n) : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(write_all(ends[1], sent), 0);
  reader.join();
  EXPECT_EQ(got, sent.size());
  ::close(ends[1]);
  ::close(ends[0]);
  EXPECT_EQ(write_all(ends[0], sent), EBADF);
}

TEST(LogFile, GoesOnBehindTheLastWholeLine) {
  const TemporaryFolder folder;
  const std::string tail(200'000, 'x');
  for (const std::string& lines : {std::string(), std::string("a\n"), "a\n" + tail + "\n"}) {
    for (const std::string& cut : {std::string(), std::string("{"), tail}) {
      put_file(folder / "log", lines + cut);
      LogFile(folder / "log", true).write("b\n");
      EXPECT_TRUE(read_file(folder / "log", 1 << 20) == lines + "b\n") << lines.size() << ' ' << cut.size();
    }
  }
  LogFile(folder / "log", false).write("c");
  EXPECT_EQ(read_file(folder / "log", 100), "c");
}

TEST(LogFile, WritesNothingThroughALink) {
  const TemporaryFolder folder;
  put_file(folder / "victim", "mine");
  std::filesystem::create_symlink(folder / "victim", folder / "log");
  std::filesystem::create_symlink(folder / "made", folder / "to nowhere");
  for (const char* name : {"log", "to nowhere"}) {
    expect_holds(error_of<FileError>([&] { LogFile(folder / name, true); }), "is a link, expected a regular file");
  }
  LogFile(folder / "log", false).write("c");
  EXPECT_EQ(read_file(folder / "victim", 100), "mine");
  EXPECT_FALSE(file_exists(folder / "made"));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_holds(error_of<FileError>([&] { LogFile(folder / "fifo", true); }), "is no regular file");
}

TEST(LogFile, GoesOnInNoFileThatHasAnotherName) {
  const TemporaryFolder folder;
  put_file(folder / "victim", "mine");
  std::filesystem::create_hard_link(folder / "victim", folder / "log");
  expect_holds(error_of<FileError>([&] { LogFile(folder / "log", true); }), "is a file of 2 names (hard links)");
  LogFile(folder / "log", false).write("c");
  EXPECT_EQ(read_file(folder / "victim", 100), "mine");
  EXPECT_EQ(read_file(folder / "log", 100), "c");
}

TEST(LogFile, AFullDiskIsAnErrorOfTheRun) {
  const TemporaryFolder folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignore = ::signal(SIGXFSZ, SIG_IGN);
  LogFile file(folder / "log", false);
  const rlimit little{.rlim_cur = 2, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string failure = error_of<WriteError>([&] { file.write("abcd"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, ignore);
  expect_holds(failure, "log: cannot be written: File too large");
}

}  // namespace
}  // namespace lockstep::testing

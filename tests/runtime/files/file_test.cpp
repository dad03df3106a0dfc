// Files in memory, files that appear whole, checksums of bytes.
#include <filesystem>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/files/crc32.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"

namespace lockstep {
namespace {

using testing::error_of;
using testing::expect_holds;

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(MappedFile, GivesItsBytes) {
  const testing::TemporaryFolder folder;
  std::string content;
  for (int i = 0; i < 20000; ++i) {
    content += static_cast<char>(i * 31 % 251);
  }
  testing::put_file(folder / "a", content);
  const MappedFile file(folder / "a");
  EXPECT_EQ(file.size(), content.size());
  EXPECT_EQ(file.path(), folder / "a");
  for (const std::size_t at : {0U, 1U, 4095U, 4096U, 4097U, 19999U}) {
    EXPECT_EQ(text(file.bytes(at, 1)), content.substr(at, 1)) << at;
    EXPECT_EQ(text(file.bytes(at, content.size() - at)), content.substr(at)) << at;
  }
  EXPECT_TRUE(file.bytes(content.size(), 0).empty());
}

TEST(MappedFile, WhatLiesOutsideIsRefused) {
  const testing::TemporaryFolder folder;
  testing::put_file(folder / "a", std::string(10000, 'x'));
  const MappedFile file(folder / "a");
  expect_holds(error_of<DataError>([&] { (void)file.bytes(9999, 2); }), "has 10000 bytes, expected 2 from 9999 on");
  (void)error_of<DataError>([&] { (void)file.bytes(10001, 0); });
  (void)error_of<DataError>([&] { (void)file.bytes(1, ~std::uint64_t{0}); });
  std::filesystem::resize_file(folder / "a", 100);
  expect_holds(error_of<DataError>([&] { (void)file.bytes(5000, 1); }), "has 100 bytes, and had 10000");
}

TEST(MappedFile, WhatIsNoFileIsRefused) {
  const testing::TemporaryFolder folder;
  expect_holds(error_of<FileError>([&] { const MappedFile file(folder / "none"); }), "cannot be opened");
  expect_holds(error_of<DataError>([&] { const MappedFile file(folder.path()); }), "is not a regular file");
  testing::put_file(folder / "empty", "");
  const MappedFile empty(folder / "empty");
  EXPECT_TRUE(empty.bytes(0, 0).empty());
  (void)error_of<DataError>([&] { (void)empty.bytes(0, 1); });
}

TEST(AtomicFile, AppearsAtOnceOrNotAtAll) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "a";
  testing::put_file(path, "old");
  {
    AtomicFile file(path);
    file.write(bytes("new"));
    EXPECT_EQ(testing::get_file(path), "old");
    EXPECT_EQ(testing::count_entries(folder.path()), 2U);
  }
  EXPECT_EQ(testing::get_file(path), "old");
  EXPECT_EQ(testing::count_entries(folder.path()), 1U) << "what was not finished is deleted";
  AtomicFile file(path);
  file.write(bytes("ne"));
  file.write(bytes("w"));
  file.commit();
  EXPECT_EQ(testing::get_file(path), "new");
  EXPECT_EQ(testing::count_entries(folder.path()), 1U);
  (void)error_of<StateError>([&] { file.write(bytes("x")); });
  expect_holds(error_of<FileError>([&] { const AtomicFile none(folder / "none/a"); }), "cannot be created");
}

TEST(Crc32, IsZlibs) {
  const std::string check = "123456789";  // the check value of CRC-32/ISO-HDLC
  EXPECT_EQ(crc32_of(bytes(check)), 0xCBF43926U);
  EXPECT_EQ(crc32_of(bytes("56789"), crc32_of(bytes("1234"))), 0xCBF43926U);
  EXPECT_EQ(crc32_of({}), 0U);
  EXPECT_EQ(crc32_of({}, 7), 7U);
}

}  // namespace
}  // namespace lockstep

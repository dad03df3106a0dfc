// Tests files of token ids: the ids that are read from them, and the files that are refused.
#include <lockstep/nn/data/token_files.hpp>

#include <functional>
#include <span>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/resident.hpp"
#include "tests/support/token_files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::token_cycle, testing::token_header, testing::write_tokens;

constexpr std::uint32_t kGpt2 = 20240520;
constexpr std::uint32_t kLlama3 = 20240801;

class TokenFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  std::vector<TokenFile> files(const std::vector<std::string>& names) const {
    std::vector<TokenFile> found;
    for (const std::string& name : names) {
      found.emplace_back(path(name));
    }
    return found;
  }

 private:
  testing::TemporaryFolder folder_;
};

std::vector<std::int32_t> tokens_of(const TokenFile& file, std::int64_t begin, std::size_t count) {
  std::vector<std::int32_t> ids(count);
  file.read(begin, 1 << 30, ids);
  return ids;
}

/// Returns tokens and labels of a window.
std::vector<std::vector<std::int32_t>> window(const TokenWindows& windows, std::int64_t index) {
  std::vector<std::vector<std::int32_t>> fields(2);
  std::vector<std::span<std::byte>> bytes;
  for (std::vector<std::int32_t>& field : fields) {
    field.resize(static_cast<std::size_t>(windows.fields()[0].shape[0]));
    bytes.push_back(std::as_writable_bytes(std::span(field)));
  }
  windows.read_sample(index, bytes);
  return fields;
}

TEST_F(TokenFiles, OfNanoGptAndOfLlmC) {
  write_tokens(path("plain.bin"), 0, {1, 65535, 256, 0});
  write_tokens(path("gpt2.bin"), kGpt2, {1, 65535, 256});
  write_tokens(path("llama3.bin"), kLlama3, {1, 128255, 1 << 29});
  EXPECT_EQ(tokens_of(TokenFile(path("plain.bin")), 0, 4), (std::vector<std::int32_t>{1, 65535, 256, 0}));
  EXPECT_EQ(tokens_of(TokenFile(path("gpt2.bin")), 1, 2), (std::vector<std::int32_t>{65535, 256}));
  EXPECT_EQ(tokens_of(TokenFile(path("llama3.bin")), 0, 3), (std::vector<std::int32_t>{1, 128255, 1 << 29}));
  EXPECT_EQ(TokenFile(path("gpt2.bin")).size(), 3);
  const TokenFile wide(path("llama3.bin"));
  std::vector<std::int32_t> ids(3);
  expect_holds(error_of<DataError>([&] { wide.read(0, 128256, ids); }),
               {"llama3.bin", "token 2 is 536870912", "128256"});
}

TEST_F(TokenFiles, WindowsOfSeveralFiles) {
  write_tokens(path("a.bin"), kGpt2, token_cycle(7, 100));         // two windows of 3
  write_tokens(path("short.bin"), 0, {90, 91});                    // too short for a window
  write_tokens(path("b.bin"), 0, {10, 11, 12, 13});                // one window
  write_tokens(path("c.bin"), kLlama3, {20, 21, 22, 23, 24, 25});  // one window: a second one lacks a label
  const TokenWindows windows("text", files({"a.bin", "short.bin", "b.bin", "c.bin", "short.bin"}), 3, 100);
  using Fields = std::vector<std::vector<std::int32_t>>;
  ASSERT_EQ(windows.size(), 4);
  EXPECT_EQ(windows.tokens(), 7 + 2 + 4 + 6 + 2);
  EXPECT_EQ(window(windows, 0), (Fields{{0, 1, 2}, {1, 2, 3}}));
  EXPECT_EQ(window(windows, 1), (Fields{{3, 4, 5}, {4, 5, 6}}));
  EXPECT_EQ(window(windows, 2), (Fields{{10, 11, 12}, {11, 12, 13}}));
  EXPECT_EQ(window(windows, 3), (Fields{{20, 21, 22}, {21, 22, 23}}));

  const TokenWindows of_others("text", files({"a.bin", "b.bin", "short.bin", "c.bin"}), 3, 100);
  EXPECT_NE(of_others.fingerprint(), windows.fingerprint());
  EXPECT_EQ(TokenWindows("renamed", files({"a.bin", "short.bin", "b.bin", "c.bin", "short.bin"}), 3, 100).fingerprint(),
            windows.fingerprint());
  const TokenWindows small("text", files({"a.bin"}), 3, 4);
  EXPECT_EQ(window(small, 0), (Fields{{0, 1, 2}, {1, 2, 3}}));
  expect_holds(error_of<DataError>([&] { window(small, 1); }), {"a.bin", "token 4 is 4", "vocabulary's 4"});
}

TEST_F(TokenFiles, LongWindows) {
  write_tokens(path("long.bin"), 0, token_cycle(2100, 997));
  const TokenWindows windows("text", files({"long.bin"}), 1000, 997);
  ASSERT_EQ(windows.size(), 2);
  const auto fields = window(windows, 1);
  for (std::int32_t t = 0; t < 1000; ++t) {
    ASSERT_EQ(fields[0][static_cast<std::size_t>(t)], (1000 + t) % 997);
    ASSERT_EQ(fields[1][static_cast<std::size_t>(t)], (1001 + t) % 997);
  }
}

TEST_F(TokenFiles, AFingerprintSeesEachByteOfASmallFileAndTheEndsOfALargeOne) {
  std::vector<std::uint32_t> ids = token_cycle(2000000, 50000);
  const auto print = [&] {
    write_tokens(path("file.bin"), 0, ids);
    return TokenFile(path("file.bin")).fingerprint();
  };
  const std::uint64_t first = print();
  ids.front() = 7;
  const std::uint64_t second = print();
  ids.back() = 8;
  const std::uint64_t third = print();
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
  ids.resize(3000);
  const std::uint64_t small = print();
  ids[1234] = 5;
  EXPECT_NE(print(), small);
}

TEST_F(TokenFiles, BadFiles) {
  const auto text = [&](const std::string& bytes) {
    testing::put_file(path("bad.bin"), bytes);
    return error_of<DataError>([&] { const TokenFile file(path("bad.bin")); });
  };
  expect_holds(text(""), {"bad.bin", "0 bytes"});
  expect_holds(text("abc"), {"bad.bin", "3 bytes", "two bytes each"});
  expect_holds(text(token_header(kGpt2, 2, 1) + "ab"), {"bad.bin", "version 2", "expected 1"});
  expect_holds(text(token_header(kLlama3, 1, 1) + "abcd"), {"bad.bin", "version 1", "expected 7"});
  expect_holds(text(token_header(kGpt2, 1, 0)), {"bad.bin", "0 tokens"});
  expect_holds(text(token_header(kGpt2, 1, 0x80000000U)), {"bad.bin", "-2147483648 tokens"});
  expect_holds(text(token_header(kGpt2, 1, 2) + "ab"), {"bad.bin", "1026 bytes", "1028", "2 tokens"});
  expect_holds(text(token_header(kGpt2, 1, 1) + "abcd"), {"bad.bin", "1028 bytes", "1026"});
  expect_holds(text(token_header(kGpt2, 1, 1).substr(0, 100)), {"bad.bin", "100 bytes", "1026"});
  expect_holds(error_of<FileError>([&] { const TokenFile file(path("none.bin")); }), {"none.bin"});

  write_tokens(path("four.bin"), 0, {1, 2, 3, 4});
  expect_holds(error_of<DataError>([&] { TokenWindows("text", files({"four.bin"}), 4, 5); }), {"text", "4 tokens"});
  expect_holds(error_of<DataError>([&] { TokenWindows("text", files({}), 4, 5); }), {"text", "0 files"});
  expect_holds(error_of<UsageError>([&] { TokenWindows("text", files({"four.bin"}), 0, 5); }), {"0 tokens"});
  expect_holds(error_of<UsageError>([&] { TokenWindows("text", files({"four.bin"}), 2, 0); }), {"vocabulary is 0"});
}

TEST_F(TokenFiles, NamesInAFolder) {
  for (const char* name : {"train.bin", "x_train_000001.bin", "x_train_000000.bin", "val.bin", "x-valid.bin",
                           "training.bin", "train.txt", ".train.bin", "meta.pkl", "interval.bin"}) {
    testing::put_file(path(name), "ab");
  }
  std::filesystem::create_directories(path("train_folder.bin"));
  const TokenFolder found = find_token_files(path(""));
  const auto names = [](const std::vector<std::string>& paths) {
    std::string text;
    for (const std::string& one : paths) {
      text += ' ' + std::filesystem::path(one).filename().string();
    }
    return text;
  };
  EXPECT_EQ(names(found.train), " train.bin x_train_000000.bin x_train_000001.bin");
  EXPECT_EQ(names(found.validation), " val.bin x-valid.bin");
  std::filesystem::remove(path("val.bin"));
  std::filesystem::remove(path("x-valid.bin"));
  expect_holds(error_of<DataError>([&] { (void)find_token_files(path("")); }), {"val.bin"});
  expect_holds(error_of<FileError>([&] { (void)find_token_files(path("none")); }), {"none", "cannot be read"});
}

// Announces windows 10 to 39 of the first file and 0 to 9 of the last file. The pages of these windows must be read
// into memory. The second file is too short for a window.
TEST_F(TokenFiles, WindowsAreReadAhead) {
  constexpr std::int64_t kLength = 4096;  // a window has 8 KiB
  const std::vector<std::string> names{"a.bin", "small.bin", "b.bin"};
  testing::put_file(path(names[0]), std::string(2 * (40 * kLength + 1), '\1'));
  testing::put_file(path(names[1]), std::string(200, '\1'));
  testing::put_file(path(names[2]), std::string(2 * (40 * kLength + 1), '\1'));
  const TokenWindows windows("windows", files(names), kLength, 65536);
  ASSERT_EQ(windows.size(), 80);
  for (const std::string& name : names) {
    testing::forget(path(name));
  }
  if (!testing::some_absent(path("a.bin"), 2 * kLength * 10, 2 * (kLength * 40 + 1))) {
    GTEST_SKIP() << "the system does not forget files in this folder";
  }
  const bool held_first = testing::resident(path("a.bin"))[0];
  const bool held_last = testing::resident(path("b.bin"))[2 * kLength * 30 / testing::page_bytes()];
  windows.ahead(10, 40);
  EXPECT_TRUE(testing::becomes_resident(path("a.bin"), 2 * kLength * 10, 2 * (kLength * 40 + 1)));
  EXPECT_TRUE(testing::becomes_resident(path("b.bin"), 0, 2 * (kLength * 10 + 1)));
  EXPECT_EQ(testing::resident(path("a.bin"))[0], held_first);
  EXPECT_EQ(testing::resident(path("b.bin"))[2 * kLength * 30 / testing::page_bytes()], held_last);
}

}  // namespace
}  // namespace lockstep::nn

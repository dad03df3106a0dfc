// Tests packed files of text and tokens, byte by byte: the written bytes, the files that are refused, and the windows
// of a packed file compared with those of its sources.
#include <cstdio>
#include <memory>
#include <thread>

#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_tokens.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/nn/data/text/text_files.hpp>
#include <lockstep/nn/data/token_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

#include "tests/support/damage.hpp"
#include "tests/support/token_files.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::error_of, testing::expect_holds, testing::token_cycle, testing::write_tokens, testing::torch::crc32;
using testing::torch::little;

constexpr std::size_t kBlock = 65536;

/// The contents of a packed file of tokens. A test can set every number of the header; text() computes correct
/// checksums.
struct Parts {
  struct Part {
    std::vector<std::uint64_t> ids;
    std::string name;
    std::uint64_t fingerprint = 0;
    std::uint64_t largest = 0;
    std::uint64_t largest_at = 0;
    std::uint64_t more_ids = 0;
    std::uint64_t longer_name = 0;
  };
  std::uint64_t version = 1;
  std::uint64_t content = 1;
  std::uint64_t train = 2;
  std::uint64_t validation = 1;
  std::uint64_t vocabulary = 301;
  std::uint64_t kind = 3;
  std::uint64_t width = 2;
  std::uint64_t index_before = 0;
  std::uint64_t index_longer = 0;
  std::uint64_t other_crc = 0;
  std::vector<Part> parts;
  std::string behind_ids;
  std::string behind;  ///< bytes at the end: the index

  Parts() {
    parts.push_back(
        {.ids = {5, 300, 7, 300}, .name = "a_train.bin", .fingerprint = 77, .largest = 300, .largest_at = 1});
    parts.push_back({.ids = {2}, .name = "", .fingerprint = ~std::uint64_t{0}, .largest = 2});
    parts.push_back({.ids = {0, 0, 256}, .name = "val.bin", .fingerprint = 3, .largest = 256, .largest_at = 2});
  }
  [[nodiscard]] std::string text() const {
    const std::string begin = "LSPACK\r\n" + little(version, 4) + little(content, 4);
    std::string ids;
    std::string index;
    std::string names;
    for (const Part& part : parts) {
      for (const std::uint64_t id : part.ids) {
        ids += little(id, static_cast<int>(width));
      }
      index += little(part.ids.size() + part.more_ids, 8) + little(part.fingerprint, 8) + little(part.largest_at, 8) +
               little(part.largest, 4) + little(part.name.size() + part.longer_name, 4);
      names += part.name;
    }
    ids += behind_ids;
    index += names;
    for (std::size_t at = 0; at < ids.size(); at += kBlock) {
      index += little(crc32(ids.substr(at, kBlock)) + other_crc, 4);
    }
    index += behind;
    const std::string end = little(16 + ids.size() - index_before, 8) + little(index.size() + index_longer, 8) +
                            little(train, 8) + little(validation, 8) + little(vocabulary, 4) + little(kind, 4) +
                            little(width, 4) + little(crc32(index), 4) + "LSPACKED" + little(0, 4);
    return begin + ids + index + end + little(crc32(begin + end), 4);
  }
};

/// Returns all ids of a packed file, part by part.
std::vector<std::vector<std::int32_t>> ids_of(const PackedTokens& file) {
  std::vector<std::vector<std::int32_t>> all;
  for (std::size_t i = 0; i < file.parts().size(); ++i) {
    all.emplace_back(static_cast<std::size_t>(file.parts()[i].size));
    file.read(i, 0, file.vocabulary(), all.back());
  }
  return all;
}

/// Returns tokens and labels of all windows.
std::vector<std::vector<std::int32_t>> samples_of(const TokenWindows& windows) {
  std::vector<std::vector<std::int32_t>> all;
  for (std::int64_t i = 0; i < windows.size(); ++i) {
    std::vector<std::vector<std::int32_t>> fields(2);
    std::vector<std::span<std::byte>> bytes;
    for (std::vector<std::int32_t>& field : fields) {
      field.resize(static_cast<std::size_t>(windows.fields()[0].shape[0]));
      bytes.push_back(std::as_writable_bytes(std::span(field)));
    }
    windows.read_sample(i, bytes);
    all.insert(all.end(), fields.begin(), fields.end());
  }
  return all;
}

class PackedTokenFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  /// Writes these bytes to a file, opens it and reads all of it.
  void read(const std::string& bytes) const {
    testing::put_file(path_, bytes);
    (void)ids_of(PackedTokens(path_));
  }
  [[nodiscard]] std::string refused(const std::string& bytes) const {
    const std::string text = error_of<DataError>([&] { read(bytes); });
    expect_holds(text, path_);
    return text;
  }
  [[nodiscard]] std::string refused(const std::function<void(Parts&)>& change) const {
    Parts parts;
    change(parts);
    return refused(parts.text());
  }
  TokenPackSummary pack(const std::string& source, bool overwrite = false) const {
    return TokenPack({.source = source, .out = path_, .overwrite = overwrite}).write([](const PackProgress&) {});
  }
  /// Expects the packed windows to equal those of the files, in samples and fingerprint.
  void expect_same(const std::vector<std::string>& files, bool validation, std::int64_t length) const {
    std::vector<TokenFile> opened;
    for (const std::string& file : files) {
      opened.emplace_back(path(file));
    }
    const TokenWindows source("source", std::move(opened), length, 200000);
    const auto file = std::make_shared<const PackedTokens>(path_);
    const TokenWindows packed("packed", token_ids_of(file, validation), length, 200000);
    EXPECT_EQ(packed.size(), source.size());
    EXPECT_EQ(packed.tokens(), source.tokens());
    EXPECT_EQ(packed.fingerprint(), source.fingerprint());
    EXPECT_TRUE(samples_of(packed) == samples_of(source)) << "windows of " << length;
  }

  testing::TemporaryFolder folder_;
  std::string path_ = folder_ / "a.pack";
};

TEST_F(PackedTokenFiles, AreWhatTheHeaderSays) {
  const Parts parts;
  PackedTokensWriter writer(path_, PackedIds::tokens, 2);
  for (std::size_t i = 0; i < 3; ++i) {
    writer.begin_part(i == 2, parts.parts[i].name, parts.parts[i].fingerprint);
    writer.add(std::vector<std::int32_t>(parts.parts[i].ids.begin(), parts.parts[i].ids.end()));
  }
  EXPECT_FALSE(fs::exists(path_));
  writer.commit();
  EXPECT_EQ(testing::get_file(path_), parts.text());
  EXPECT_EQ(writer.bytes(), parts.text().size());
  EXPECT_EQ(testing::count_entries(folder_.path()), 1U);

  const PackedTokens file(path_);
  EXPECT_TRUE(is_packed_tokens(path_));
  EXPECT_EQ(file.ids(), PackedIds::tokens);
  EXPECT_EQ(file.width(), 2);
  EXPECT_EQ(file.vocabulary(), 301);
  EXPECT_EQ(file.train_parts(), 2U);
  EXPECT_EQ(file.blocks(), 1);
  EXPECT_EQ(ids_of(file), (std::vector<std::vector<std::int32_t>>{{5, 300, 7, 300}, {2}, {0, 0, 256}}));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(file.parts()[i].name, parts.parts[i].name);
    EXPECT_EQ(file.parts()[i].fingerprint, parts.parts[i].fingerprint);
    EXPECT_EQ(file.parts()[i].largest_at, static_cast<std::int64_t>(parts.parts[i].largest_at));
  }
  EXPECT_NO_THROW(file.require_below(301));
  EXPECT_EQ(error_of<DataError>([&] { file.require_below(300); }),
            printable(path_) + ": part 0 ('a_train.bin'): token 1 is 300, expected one below the vocabulary's 300");
  std::vector<std::int32_t> ids(2);
  EXPECT_EQ(error_of<DataError>([&] { file.read(2, 1, 256, ids); }),
            printable(path_) + ": part 2 ('val.bin'): token 2 is 256, expected one below the vocabulary's 256");
}

TEST_F(PackedTokenFiles, EveryBitCounts) {
  const std::string good = Parts().text();
  ASSERT_NO_THROW(read(good));
  testing::for_each_flipped_bit(good, [&](const std::string& bytes) { (void)refused(bytes); });
}

TEST_F(PackedTokenFiles, EveryByteIsThere) {
  const std::string good = Parts().text();
  testing::for_each_other_length(good, [&](const std::string& bytes) { (void)refused(bytes); });
  expect_holds(refused(std::string()), "begins as no packed file does");
  expect_holds(refused(good.substr(0, 40)), "ends at byte 40, expected at least 80: it is cut off");
  expect_holds(refused(good.substr(0, good.size() - 3)), "it is cut off or damaged");
}

TEST_F(PackedTokenFiles, NumbersThatCannotBeAreNamed) {
  const auto part = [](std::size_t i, const std::function<void(Parts::Part&)>& change) {
    return [=](Parts& parts) { change(parts.parts[i]); };
  };
  ASSERT_NO_THROW(read(Parts().text()));
  expect_holds(refused([](Parts& p) { p.version = 2; }), "version 2, expected 1");
  expect_holds(refused([](Parts& p) { p.content = 2; }),
               "is a packed file of content 2, which is unknown, expected a packed file of text or tokens");
  expect_holds(refused([](Parts& p) { p.content = 0; }),
               "is a packed file of pictures (train_resnet reads it), expected a packed file of text or tokens "
               "(train_text reads it)");
  expect_holds(refused([](Parts& p) { p.index_before = 1; }), "expected one that ends at byte");
  expect_holds(refused([](Parts& p) { p.index_longer = ~std::uint64_t{0} - 400; }), "index of");
  expect_holds(refused([](Parts& p) { p.train = 0; }),
               "0 parts to train on and 1 for validation, expected at least one of each");
  expect_holds(refused([](Parts& p) { p.validation = 0; }), "2 parts to train on and 0 for validation");
  expect_holds(refused([](Parts& p) { p.train = ~std::uint64_t{0}; }),
               "18446744073709551615 training and 1 validation parts, expected at");
  expect_holds(refused([](Parts& p) { p.validation = std::uint64_t{1} << 60; }), "parts, expected at most 3 in all");
  expect_holds(refused([](Parts& p) { p.validation = 2; }), "parts, expected at most 3 in all");
  expect_holds(refused([](Parts& p) { p.train = 1; }), "ids end at byte 26, expected 32, where the index begins");
  expect_holds(refused([](Parts& p) { p.kind = 1; }), "ids of kind 1, expected 2 (bytes of a text) or 3 (tokens)");
  expect_holds(refused([](Parts& p) { p.kind = 2; }), "expected one of each: it is a text");
  expect_holds(refused([](Parts& p) { p.width = 3; }), "ids of 3 bytes, expected 1, 2 or 4");
  expect_holds(refused([](Parts& p) { p.width = 0; }), "ids of 0 bytes, expected 1, 2 or 4");
  expect_holds(refused([](Parts& p) {
                 p.kind = 2;
                 p.parts.erase(p.parts.begin() + 1);
                 p.train = 1;
               }),
               "ids of 2 bytes, expected 1: it is a text");
  expect_holds(refused([](Parts& p) { p.vocabulary = 302; }),
               "the vocabulary is 302, expected 301, as the largest id is 300");
  expect_holds(refused([](Parts& p) { p.behind_ids = "xx"; }), "ids end at byte 32, expected 34");
  expect_holds(refused([](Parts& p) { p.behind = "x"; }), "the index has");
  expect_holds(refused([](Parts& p) { p.other_crc = 1; }), "part 0 ('a_train.bin'): CRC-32 ");
  expect_holds(refused(part(0, [](auto& p) { p.more_ids = 1; })), "part 2 has 3 ids, expected 1 to 2");
  expect_holds(refused(part(2, [](auto& p) { p.more_ids = ~std::uint64_t{0}; })),
               "part 2 has its largest id, 256, at place 2");
  expect_holds(refused(part(1, [](auto& p) { p.more_ids = ~std::uint64_t{0}; })), "part 1 has 0 ids, expected 1 to 4");
  expect_holds(refused(part(1, [](auto& p) { p.longer_name = 1; })), "the index has");
  expect_holds(refused(part(1, [](auto& p) { p.longer_name = 0xFFFFFFFF; })), "the index has");
  expect_holds(refused(part(1, [](auto& p) { p.largest_at = 1; })),
               "part 1 has its largest id, 2, at place 1, expected one of 2 bytes, and a place below 1");
  expect_holds(refused(part(1, [](auto& p) { p.largest = 65536; })), "part 1 has its largest id, 65536, at place 0");
  expect_holds(refused([](Parts& p) {
                 p.width = 4;
                 p.parts[1].largest = 0x7FFFFFFF;
               }),
               "part 1 has its largest id, 2147483647");
}

TEST_F(PackedTokenFiles, PicturesAndTokensAreToldApart) {
  testing::put_file(path_, Parts().text());
  expect_holds(error_of<DataError>([&] { const PackedFile file(path_); }),
               "is a packed file of text or tokens (train_text reads it), expected a packed file of pictures");
  PackedWriter writer(path("b.pack"), PackedStore::pixels, {"a"});
  const std::vector<std::uint8_t> pixels(3);
  writer.add(false, {0, 1, 1}, pixels);
  writer.add(true, {0, 1, 1}, pixels);
  writer.commit();
  EXPECT_FALSE(is_packed_tokens(path("b.pack")));
  expect_holds(error_of<DataError>([&] { const PackedTokens file(path("b.pack")); }),
               "is a packed file of pictures (train_resnet reads it), expected a packed file of text or tokens");
  testing::put_file(path("c"), "LS");
  EXPECT_FALSE(is_packed_tokens(path("c")));
  (void)error_of<FileError>([&] { (void)is_packed_tokens(path("none")); });
}

TEST_F(PackedTokenFiles, OneThatBecomesShorterIsNamed) {
  testing::put_file(path_, Parts().text());
  const PackedTokens file(path_);
  fs::resize_file(path_, 30);
  expect_holds(error_of<DataError>([&] { (void)ids_of(file); }), "has 30 bytes, expected at least the");
}

/// Returns the result of check_packed() for the file at this path.
PackedCheck checked(const std::string& path, int threads, std::size_t most) {
  const PackedTokens file(path);
  std::int64_t done = 0;
  PackedCheck check = check_packed(file, threads, most, [&](const PackProgress& progress) {
    EXPECT_EQ(progress.done, done + 1);
    EXPECT_EQ(progress.all, file.blocks());
    done = progress.done;
  });
  EXPECT_EQ(done, file.blocks());
  return check;
}

/// A packed file of three parts with two bytes an id. All ids together fill three blocks of up to 65536 bytes.
class PackedBlocks : public PackedTokenFiles {
 protected:
  PackedBlocks() {
    write_tokens(path("data/train_0.bin"), 20240801, token_cycle(50000, 70001));
    write_tokens(path("data/train_1.bin"), 0, token_cycle(3000, 900));
    write_tokens(path("data/val.bin"), 20240520, token_cycle(40001, 40000));
    summary_ = pack("tokens:" + path("data"));
  }
  TokenPackSummary summary_;
};

TEST_F(PackedBlocks, HaveTheWindowsOfTheirFiles) {
  EXPECT_EQ(summary_.vocabulary, 50000);
  EXPECT_EQ(summary_.width, 2);
  EXPECT_EQ(summary_.bytes, fs::file_size(path_));
  for (const std::int64_t length : {1, 3, 256, 257, 1000, 2999, 40000}) {
    expect_same({"data/train_0.bin", "data/train_1.bin"}, false, length);
    expect_same({"data/val.bin"}, true, length);
  }
  const PackedTokens file(path_);
  EXPECT_EQ(file.parts()[0].name, "train_0.bin");
  EXPECT_EQ(file.parts()[2].name, "val.bin");
  // Equal sources must give packed files with equal bytes, even if the paths of their folders differ.
  const std::string bytes = testing::get_file(path_);
  fs::rename(path("data"), path("moved"));
  pack("tokens:" + path("moved"), true);
  EXPECT_TRUE(testing::get_file(path_) == bytes);
}

TEST_F(PackedBlocks, OfEveryWidth) {
  write_tokens(path("small/train.bin"), 20240801, token_cycle(3000, 256));
  write_tokens(path("small/val.bin"), 0, token_cycle(99, 7));
  EXPECT_EQ(pack("tokens:" + path("small"), true).width, 1);
  expect_same({"small/train.bin"}, false, 10);
  expect_same({"small/val.bin"}, true, 10);
  write_tokens(path("small/train.bin"), 20240801, token_cycle(3000, 257));
  EXPECT_EQ(pack("tokens:" + path("small"), true).width, 2);
  expect_same({"small/train.bin"}, false, 10);
  write_tokens(path("small/val.bin"), 20240801, {1, 65535, 3, 4});
  EXPECT_EQ(pack("tokens:" + path("small"), true).width, 2);
  write_tokens(path("small/val.bin"), 20240801, {1, 65536, 3, 4});
  EXPECT_EQ(pack("tokens:" + path("small"), true).width, 4);
  expect_same({"small/train.bin"}, false, 10);
  expect_same({"small/val.bin"}, true, 3);
  write_tokens(path("small/val.bin"), 20240801, {1, 0x7FFFFFFE, 3, 4});
  EXPECT_EQ(pack("tokens:" + path("small"), true).vocabulary, 0x7FFFFFFF);
  write_tokens(path("small/val.bin"), 20240801, {1, 0x7FFFFFFF, 3, 4});
  expect_holds(error_of<DataError>([&] { pack("tokens:" + path("small"), true); }), "token 1 is 2147483647");
}

TEST_F(PackedBlocks, AreCheckedWhenTheyAreReadForTheFirstTime) {
  std::string bytes = testing::get_file(path_);
  ASSERT_EQ(PackedTokens(path_).blocks(), 3) << "93001 ids of two bytes";
  const std::size_t at = 16 + kBlock + 4;  // id 32770, in the second block
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  testing::put_file(path_, bytes);
  const auto file = std::make_shared<const PackedTokens>(path_);
  std::vector<std::int32_t> ids(10);
  EXPECT_NO_THROW(file->read(0, 32758, 1 << 30, ids)) << "they end the first block";
  EXPECT_EQ(ids.back(), 32767);
  for (int i = 0; i < 2; ++i) {  // the second call gives the error again
    expect_holds(error_of<DataError>([&] { file->read(0, 32759, 1 << 30, ids); }),
                 {"a.pack': part 0 ('train_0.bin'): CRC-32 ", " of 65536 bytes from token 32768 on, expected ",
                  ": the file is damaged"});
  }
  EXPECT_NO_THROW(file->read(2, 39991, 1 << 30, ids)) << "of the third block";
  const TokenWindows windows("packed", token_ids_of(file, false), 1000, 1 << 30);
  expect_holds(error_of<DataError>([&] { (void)samples_of(windows); }), "part 0 ('train_0.bin'): CRC-32 ");
  // A process checks each block once. A block whose checksum was right is not checked again, even if its bytes change.
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  testing::put_file(path("b.pack"), bytes);
  const PackedTokens other(path("b.pack"));
  other.read(0, 40000, 1 << 30, ids);
  {
    std::FILE* changed = std::fopen(path("b.pack").c_str(), "r+b");
    ASSERT_NE(changed, nullptr);
    std::fseek(changed, static_cast<long>(at), SEEK_SET);
    std::fputc('x', changed);
    std::fclose(changed);
  }
  EXPECT_NO_THROW(other.read(0, 32759, 1 << 30, ids));
  expect_holds(error_of<DataError>([&] { (void)other.read_block(1); }), "CRC-32 ");
}

TEST_F(PackedBlocks, AreReadByManyThreads) {
  const auto file = std::make_shared<const PackedTokens>(path_);
  const TokenWindows windows("packed", token_ids_of(file, false), 100, 1 << 30);
  const auto expected = samples_of(windows);
  const auto fresh = std::make_shared<const PackedTokens>(path_);
  const TokenWindows read("packed", token_ids_of(fresh, false), 100, 1 << 30);
  std::vector<std::vector<std::vector<std::int32_t>>> found(4);
  std::vector<std::thread> threads;
  for (auto& samples : found) {
    threads.emplace_back([&] { samples = samples_of(read); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& samples : found) {
    EXPECT_TRUE(samples == expected);
  }
}

TEST_F(PackedBlocks, ACheckNamesTheDamagedOnes) {
  for (const int threads : {1, 3}) {
    const PackedCheck check = checked(path_, threads, 20);
    EXPECT_EQ(check.damaged, 0);
    EXPECT_TRUE(check.texts.empty());
  }
  const std::string good = testing::get_file(path_);
  std::string bytes = good;
  for (const std::size_t at : {std::size_t{16}, 16 + 2 * kBlock}) {
    bytes[at] = static_cast<char>(bytes[at] ^ 128);
  }
  testing::put_file(path_, bytes);
  for (const int threads : {1, 3}) {
    const PackedCheck check = checked(path_, threads, 20);
    EXPECT_EQ(check.damaged, 2);
    ASSERT_EQ(check.texts.size(), 2U);
    char numbers[80];
    std::snprintf(numbers, sizeof numbers, "CRC-32 %08x of 65536 bytes from token 0 on, expected %08x",
                  static_cast<unsigned>(crc32(bytes.substr(16, kBlock))),
                  static_cast<unsigned>(crc32(good.substr(16, kBlock))));
    EXPECT_EQ(check.texts[0], concat(printable(path_), ": part 0 ('train_0.bin'): ", numbers, ": the file is damaged"));
    expect_holds(check.texts[1], "part 2 ('val.bin'): CRC-32 ");
    expect_holds(check.texts[1], " of 54930 bytes from token 12536 on, expected ");
    EXPECT_EQ(checked(path_, threads, 1).texts, std::vector(check.texts.begin(), check.texts.begin() + 1));
  }
  expect_holds(error_of<UsageError>([&] { (void)checked(path_, 0, 20); }), "threads are 0, expected 1 to 1024");
}

TEST_F(PackedBlocks, ACheckKnowsTheFirstPlaceOfAnIdInManyBlocks) {
  write_tokens(path("data/train_0.bin"), 20240801, token_cycle(200000, 7));
  write_tokens(path("data/train_1.bin"), 0, token_cycle(100000, 3));
  write_tokens(path("data/val.bin"), 0, {0, 0, 0});
  pack("tokens:" + path("data"), true);
  const PackedTokens file(path_);
  EXPECT_EQ(file.blocks(), 5);
  EXPECT_EQ(file.parts()[0].largest_at, 6);
  EXPECT_EQ(file.parts()[1].largest_at, 2);
  EXPECT_EQ(file.parts()[2].largest_at, 0);
  EXPECT_EQ(checked(path_, 2, 20).damaged, 0);
}

TEST_F(PackedTokenFiles, ACheckFindsAnIndexThatIsNotThatOfTheIds) {
  Parts parts;
  testing::put_file(path_, parts.text());
  EXPECT_EQ(checked(path_, 1, 20).damaged, 0);
  const auto refused_check = [&](const std::string& bytes) {
    testing::put_file(path_, bytes);
    const PackedTokens file(path_);
    return error_of<DataError>([&] { (void)check_packed(file, 2, 20, [](const PackProgress&) {}); });
  };
  parts.parts[0].largest_at = 3;
  expect_holds(
      refused_check(parts.text()),
      "part 0 ('a_train.bin'): its largest id is 300 at place 1, expected 300 at place 3, as the index has it");
  parts = Parts();
  parts.parts[2].ids[1] = 257;
  expect_holds(refused_check(parts.text()), "its largest id is 257 at place 1, expected 256 at place 2");
  parts.width = 4;
  parts.parts[2].ids[1] = 0xFFFFFFFF;
  expect_holds(refused_check(parts.text()), "its largest id is 4294967295 at place 1, expected 256 at place 2");
}

TEST_F(PackedTokenFiles, ATextIsItsBytes) {
  fs::create_directories(path("text"));
  testing::put_file(path("text/b.md"), "0123456789");
  testing::put_file(path("text/a.txt"), std::string("\xff\0ab", 4));
  testing::put_file(path("text/c.png"), "no text");
  const TokenPack pack({.source = "text:" + path("text"), .out = path_});
  EXPECT_EQ(pack.files(), 2);
  EXPECT_EQ(pack.train_tokens(), 13);
  EXPECT_EQ(pack.validation_tokens(), 1);
  std::int64_t reports = 0;
  const TokenPackSummary summary = pack.write([&](const PackProgress& progress) {
    ++reports;
    EXPECT_EQ(progress.all, 14);
    EXPECT_EQ(progress.done, reports == 1 ? 13 : 14);
  });
  EXPECT_EQ(reports, 2);
  EXPECT_EQ(summary.vocabulary, 256);
  const PackedTokens file(path_);
  EXPECT_EQ(file.ids(), PackedIds::text);
  EXPECT_EQ(file.width(), 1);
  EXPECT_EQ(file.text(0), std::string_view("\xff\0ab012345678", 13));
  EXPECT_EQ(file.text(1), "9");
  EXPECT_EQ(file.parts()[0].name, "train");
  EXPECT_EQ(file.parts()[1].name, "val");
  const TextFiles text = read_text(path("text"), "it");
  EXPECT_EQ(file.text(0), text.train);
  EXPECT_EQ(file.text(1), text.validation);

  std::string bytes = testing::get_file(path_);
  bytes[17] = static_cast<char>(bytes[17] ^ 4);
  testing::put_file(path_, bytes);
  const PackedTokens damaged(path_);
  expect_holds(error_of<DataError>([&] { (void)damaged.text(0); }), "part 0 ('train'): CRC-32 ");
  expect_holds(error_of<DataError>([&] { (void)damaged.text(1); }), " of 14 bytes from byte 0 on, expected ");
}

TEST_F(PackedTokenFiles, SourcesThatAreNone) {
  const auto usage = [&](const TokenPackOptions& options) {
    return error_of<UsageError>([&] { const TokenPack pack(options); });
  };
  const auto data = [&](const TokenPackOptions& options) {
    return error_of<DataError>([&] { const TokenPack pack(options); });
  };
  testing::put_file(path("short.txt"), "123456789");
  testing::put_file(path("ten.txt"), "1234567890");
  fs::create_directories(path("data"));
  EXPECT_TRUE(is_token_source("tokens:x") && is_token_source("text:x"));
  EXPECT_FALSE(is_token_source("x") || is_token_source("./text:x") || is_token_source("list:x"));
  expect_holds(usage({.source = path("ten.txt"), .out = path_}), "expected tokens:DIR or text:PATH");
  expect_holds(usage({.source = "text:", .out = path_}), "'text:', expected a path after the colon");
  expect_holds(usage({.source = "text:" + path("ten.txt"), .out = path_, .vocabulary = 7}),
               "the vocabulary is 7, expected it with tokens:DIR alone");
  expect_holds(data({.source = "text:" + path("short.txt"), .out = path_}),
               "9 bytes, expected at least 10: the last tenth is for validation");
  expect_holds(data({.source = "text:" + path("none"), .out = path_}), "there is no such file or folder");
  expect_holds(data({.source = "text:" + path("data"), .out = path_}),
               "the folder holds no file *.md, *.txt, *.hpp or *.cpp");
  expect_holds(data({.source = "tokens:" + path("data"), .out = path_}), "train.bin");
  expect_holds(data({.source = "tokens:" + path("none"), .out = path_}), "cannot be read");
  expect_holds(usage({.source = "text:" + path("ten.txt"), .out = path("ten.txt"), .overwrite = true}),
               "is the source that is packed, expected another file");
  expect_holds(usage({.source = "text:" + path("ten.txt"), .out = path("data")}), "is a folder, expected a file");
  expect_holds(usage({.source = "text:" + folder_.path(), .out = path("data/a.pack")}), "expected a place outside");
  expect_holds(data({.source = "text:" + path("ten.txt"), .out = path("nowhere/a")}), "cannot be made");
  pack("text:" + path("ten.txt"));
  expect_holds(usage({.source = "text:" + path("ten.txt"), .out = path_}), "exists, expected no such file");

  write_tokens(path("data/train.bin"), 0, token_cycle(40, 30));
  testing::put_file(path("data/val.bin"), "abc");
  expect_holds(data({.source = "tokens:" + path("data"), .out = path_, .overwrite = true}), "val.bin': 3 bytes");
  write_tokens(path("data/val.bin"), 0, token_cycle(40, 40));
  expect_holds(usage({.source = "tokens:" + path("data"), .out = path_, .vocabulary = 0, .overwrite = true}),
               "the vocabulary is 0, expected 1 to 2147483647");
  const std::string before = testing::get_file(path_);
  const TokenPack large({.source = "tokens:" + path("data"), .out = path_, .vocabulary = 35, .overwrite = true});
  expect_holds(error_of<DataError>([&] { (void)large.write([](const PackProgress&) {}); }),
               "val.bin': token 35 is 35, expected one below the vocabulary's 35");
  EXPECT_EQ(testing::get_file(path_), before);
  // write() reads the source twice. An error is expected if the source changes in between.
  const TokenPack changing({.source = "tokens:" + path("data"), .out = path_, .overwrite = true});
  expect_holds(error_of<DataError>([&] {
                 (void)changing.write([&](const PackProgress& progress) {
                   if (progress.done == 80) {
                     write_tokens(path("data/val.bin"), 0, token_cycle(60, 60));
                   }
                 });
               }),
               "val.bin': token 40 is 40");
  EXPECT_EQ(testing::get_file(path_), before);
  EXPECT_EQ(testing::count_entries(folder_.path()), 4U) << "nothing of what failed is left";
}

TEST_F(PackedTokenFiles, TheWriterTakesWhatTheReaderTakes) {
  const std::vector<std::int32_t> ids{1, 255};
  {
    PackedTokensWriter writer(path_, PackedIds::tokens, 1);
    expect_holds(error_of<StateError>([&] { writer.add(ids); }), "ids are added before the first part");
    expect_holds(error_of<UsageError>([&] { writer.commit(); }), "0 parts to train on and 0 for validation");
    writer.begin_part(false, "a", 0);
    writer.add(ids);
    expect_holds(error_of<UsageError>([&] { writer.add(std::vector<std::int32_t>{256}); }),
                 "token 2 of part 0 is 256, expected 0 to 255 in 1 byte");
    expect_holds(error_of<UsageError>([&] { writer.add(std::vector<std::int32_t>{-1}); }), "is -1");
    writer.begin_part(true, "b", 0);
    expect_holds(error_of<StateError>([&] { writer.begin_part(false, "c", 0); }), "after one for validation");
    expect_holds(error_of<UsageError>([&] { writer.commit(); }), "part 'b' has no ids, expected one or more");
  }
  EXPECT_EQ(testing::count_entries(folder_.path()), 0U) << "without commit() nothing is left";
  expect_holds(error_of<UsageError>([&] { const PackedTokensWriter writer(path_, PackedIds::tokens, 3); }),
               "ids have 3 bytes, expected 1, 2 or 4");
  expect_holds(error_of<UsageError>([&] { const PackedTokensWriter writer(path_, PackedIds::text, 2); }),
               "ids have 2 bytes, expected 1 of a text");
  PackedTokensWriter text(path_, PackedIds::text, 1);
  for (int i = 0; i < 2; ++i) {
    text.begin_part(false, "a", 0);
    text.add(ids);
  }
  text.begin_part(true, "b", 0);
  text.add(ids);
  expect_holds(error_of<UsageError>([&] { text.commit(); }), "expected one of each: it is a text");
  (void)error_of<FileError>([&] { const PackedTokensWriter writer(folder_ / "none/a", PackedIds::tokens, 1); });
}

}  // namespace
}  // namespace lockstep::nn

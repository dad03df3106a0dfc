// lockstep-pack with text and tokens as people call it, and training on what it writes.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/token_files.hpp"
#include "tests/tools/pack_runs.hpp"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::expect_holds;
using testing::expect_refused;

class PackTokens : public PackTest {
 protected:
  static Ended train(const std::string& options) {
    return testing::run_command(std::string(TRAIN_TEXT) +
                                " --layers 1 --heads 2 --width 32 --length 32 --batch-size 16 --threads 1 --sample 0 "
                                "--log-every 1 --schedule constant --warmup-epochs 0 " +
                                options);
  }
  /// Two files to train on and one for validation, of three forms.
  void put_tokens() const {
    testing::write_tokens(path("data/train_0.bin"), 0, testing::token_cycle(3000, 41));
    testing::write_tokens(path("data/train_1.bin"), 20240801, testing::token_cycle(1500, 300));
    testing::write_tokens(path("data/val.bin"), 20240520, testing::token_cycle(700, 40));
  }
  void put_texts() const {
    fs::create_directories(path("text/more"));
    for (const char* name : {"text/a.md", "text/more/b.txt", "text/z.cpp"}) {
      std::string text;
      for (int i = 0; i < 2000; ++i) {
        text += static_cast<char>(i % 7 == 0 ? 200 + i % 50 : name[5] + i % (5 + text.size() % 3));
      }
      testing::put_file(path(name), text);
    }
  }
  /// Trains two epochs on `source` and on `file`, and one on each: all have the same state.
  void expect_same_runs(const std::string& source, const std::string& file, const std::string& options) const {
    const std::string packed = options + " --data packed:" + file;
    const Ended one = train("--epochs 2 --data " + source + options + " --out " + path("one"));
    ASSERT_EQ(one.code, 0) << one.output;
    for (const char* ranks : {" --devices cpu", " --workers 2 --devices cpu"}) {
      const Ended other = train("--epochs 2" + packed + ranks + " --out " + path("other"));
      ASSERT_EQ(other.code, 0) << other.output;
      EXPECT_TRUE(state("other") == state("one")) << other.output;
      fs::remove_all(path("other"));
    }
    ASSERT_EQ(train("--epochs 1 --data " + source + options + " --out " + path("parts")).code, 0);
    EXPECT_FALSE(state("parts") == state("one"));
    const Ended on = train("--epochs 2 --resume auto" + packed + " --out " + path("parts"));
    ASSERT_EQ(on.code, 0) << on.output;
    EXPECT_EQ(on.count("  resuming   "), 1) << on.output;
    EXPECT_EQ(on.count("training_data"), 0) << on.output;
    EXPECT_EQ(on.count("test_data"), 0) << on.output;
    EXPECT_TRUE(state("parts") == state("one"));
    if (LOCKSTEP_HAS_MPI != 0) {
      ASSERT_EQ(train("--epochs 2 --devices cpu:2 --data " + source + options + " --out " + path("two")).code, 0);
      const Ended ranks = train("--epochs 2 --devices cpu:2" + packed + " --out " + path("other"));
      ASSERT_EQ(ranks.code, 0) << ranks.output;
      EXPECT_TRUE(state("other") == state("two")) << ranks.output;
    }
  }
};

TEST_F(PackTokens, OfTokensTrainToTheSameBytes) {
  put_tokens();
  const Ended packed = pack("tokens:" + path("data") + " " + path("a.pack"));
  ASSERT_EQ(packed.code, 0) << packed.output;
  expect_same_runs("tokens:" + path("data"), path("a.pack"), " --vocabulary 300");
  // Other tokens are noticed.
  testing::write_tokens(path("data/train_1.bin"), 20240801, testing::token_cycle(1500, 299));
  ASSERT_EQ(pack("tokens:" + path("data") + " " + path("b.pack")).code, 0);
  const Ended on =
      train("--vocabulary 300 --epochs 3 --resume auto --data packed:" + path("b.pack") + " --out " + path("parts"));
  ASSERT_EQ(on.code, 0) << on.output;
  EXPECT_EQ(on.count("options 'training_data': checkpoint \""), 1) << on.output;
  EXPECT_EQ(on.count("test_data"), 0) << on.output;
}

TEST_F(PackTokens, OfTextTrainToTheSameBytes) {
  put_texts();
  const Ended packed = pack("text:" + path("text") + " " + path("a.pack"));
  ASSERT_EQ(packed.code, 0) << packed.output;
  expect_same_runs(path("text"), path("a.pack"), "");
}

TEST_F(PackTokens, OfAFileIsWhatTheTextIs) {
  put_texts();
  ASSERT_EQ(pack("text:" + path("text/a.md") + " " + path("a.pack")).code, 0);
  const std::string text = testing::get_file(path("text/a.md"));
  const nn::PackedTokens file(path("a.pack"));
  EXPECT_EQ(std::string(file.text(0)), text.substr(0, 1800));
  EXPECT_EQ(std::string(file.text(1)), text.substr(1800));
}

TEST_F(PackTokens, SaysWhatItDoesAndDid) {
  put_tokens();
  const std::string call = "tokens:" + path("data") + " " + path("a.pack");
  const Ended first = pack(call);
  ASSERT_EQ(first.code, 0) << first.output;
  for (const std::string& words :
       {"tokens:" + path("data") + ": 3 files, 4500 tokens to train on and 700 for validation",
        std::string("ids of 1, 2 or 4 bytes, as the largest needs"), path("a.pack") + "; appears when it is whole",
        path("a.pack") + ": 4500 tokens to train on and 700 for validation, 10.",
        std::string("the largest id is 299; 2 bytes each"),
        "train_text --data packed:" + path("a.pack") + " --vocabulary N"}) {
    expect_holds(first.output, words);
  }
  expect_refused(pack(call), {path("a.pack"), "exists", "--overwrite"});
  const std::string before = testing::get_file(path("a.pack"));
  const Ended again = testing::run_command(std::string("sh -c '") + LOCKSTEP_TEST_PROGRAM + " " + call +
                                           " --overwrite --vocabulary 300 --json 2>/dev/null'");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(testing::get_file(path("a.pack")), before) << "equal sources give equal bytes";
  const Json summary = parse_json(again.output, "output");
  EXPECT_EQ(summary.get<std::string>("source", "output"), "tokens:" + path("data"));
  EXPECT_EQ(summary.get<std::string>("ids", "output"), "tokens");
  EXPECT_EQ(summary.get<std::int64_t>("files", "output"), 3);
  EXPECT_EQ(summary.get<std::int64_t>("training_tokens", "output"), 4500);
  EXPECT_EQ(summary.get<std::int64_t>("validation_tokens", "output"), 700);
  EXPECT_EQ(summary.get<std::int64_t>("vocabulary", "output"), 300);
  EXPECT_EQ(summary.get<std::int64_t>("bytes_per_id", "output"), 2);
  EXPECT_EQ(summary.get<std::int64_t>("bytes", "output"), static_cast<std::int64_t>(before.size()));

  expect_refused(pack(call + " --overwrite --vocabulary 299"),
                 {"train_1.bin", "token 299 is 299, expected one below the vocabulary's 299"});
  EXPECT_EQ(testing::get_file(path("a.pack")), before);
  expect_refused(pack(call + " --overwrite --vocabulary 0"), {"vocabulary is 0", "expected 1 to"});
  for (const std::string option :
       {"--store pixels", "--resize 3", "--val-fraction 0.1", "--seed 3", "--skip-damaged", "--threads 2"}) {
    expect_refused(pack(call + " --overwrite " + option),
                   {option.substr(0, option.find(' ')) + " is given beside tokens:" + path("data")});
  }
  expect_refused(pack(path("data") + " " + path("b.pack") + " --vocabulary 4"),
                 {"--vocabulary is 4 beside a folder of pictures"});
  put_texts();
  expect_refused(pack("text:" + path("text") + " " + path("b.pack") + " --vocabulary 4"), {"a text's tokens are its"});
  expect_refused(pack("text:" + path("none") + " " + path("b.pack")), {path("none"), "no such file or folder"});
  expect_refused(pack("tokens:" + path("text") + " " + path("b.pack")), {path("text"), "train.bin"});
  expect_refused(pack("text:" + path("text") + " " + path("text/b.pack")), {"lies in", "expected a place outside"});
  expect_refused(pack("text: " + path("b.pack")), {"expected a path behind the colon"});
  testing::put_file(path("empty.txt"), "");
  expect_refused(pack("text:" + path("empty.txt") + " " + path("b.pack")), {"0 bytes, expected at least 10"});
  testing::put_file(path("data/val.bin"), "");
  expect_refused(pack("tokens:" + path("data") + " " + path("b.pack")), {"val.bin", "0 bytes"});
  EXPECT_FALSE(fs::exists(path("b.pack")));
  const Ended help = pack("--help");
  for (const char* words : {"tokens:DIR", "text:PATH", "--vocabulary"}) {
    expect_holds(help.output, words);
  }
}

TEST_F(PackTokens, JsonNamesFilesOfAnyBytes) {
  put_tokens();
  fs::rename(path("data"), path("d\xff"));
  const Ended ended = testing::run_command(std::string("sh -c '") + LOCKSTEP_TEST_PROGRAM +
                                           " tokens:" + path("d\xff ") + path("a\xff.pack") + " --json 2>/dev/null'");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const Json summary = parse_json(ended.output, "output");
  EXPECT_EQ(summary.get<std::string>("source", "output"), "tokens:" + path("d\\xff"));
  EXPECT_EQ(summary.get<std::string>("file", "output"), path("a\\xff.pack"));
  const Json checked = parse_json(pack("--json --check " + path("a\xff.pack")).output, "output");
  EXPECT_EQ(checked.get<std::string>("file", "output"), path("a\\xff.pack"));
}

// A FIFO in place of a device, which root could lose.
TEST_F(PackTokens, WhatIsNoFileIsNotReplaced) {
  put_tokens();
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(pack("tokens:" + path("data") + " " + fifo + " --overwrite"),
                 {"fifo: is a FIFO, expected a regular file to replace, or nothing"});
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_EQ(testing::count_entries(path("")), 2U) << "data, fifo";
}

TEST_F(PackTokens, ACheckReadsAllOfThem) {
  put_tokens();
  ASSERT_EQ(pack("tokens:" + path("data") + " " + path("a.pack")).code, 0);
  const std::string good = testing::get_file(path("a.pack"));
  const std::string check = "--check " + path("a.pack");
  for (const char* options : {"", " --threads 1", " --threads 5"}) {
    const Ended whole = pack(check + options);
    EXPECT_EQ(whole.code, 0);
    EXPECT_EQ(whole.output, concat("4500 and 700 tokens of a vocabulary of 300, in 3 parts of 2 bytes an id, ",
                                   good.size(), " bytes: all checksums right\n"));
  }
  const auto changed = [&](std::size_t at) {
    std::string bytes = good;
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
    testing::put_file(path("a.pack"), bytes);
    return pack(check);
  };
  const auto json_of = [&] {
    return parse_json(
        testing::run_command(std::string("sh -c '") + LOCKSTEP_TEST_PROGRAM + " " + check + " --json 2>/dev/null'")
            .output,
        "output");
  };
  const Json right = json_of();
  EXPECT_EQ(right.get<std::string>("file", "output"), path("a.pack"));
  EXPECT_EQ(right.get<std::string>("ids", "output"), "tokens");
  EXPECT_EQ(right.get<std::int64_t>("vocabulary", "output"), 300);
  EXPECT_EQ(right.get<std::int64_t>("parts", "output"), 3);
  EXPECT_EQ(right.get<std::int64_t>("training_tokens", "output"), 4500);
  EXPECT_EQ(right.get<std::int64_t>("validation_tokens", "output"), 700);
  EXPECT_EQ(right.get<std::int64_t>("bytes_per_id", "output"), 2);
  EXPECT_EQ(right.get<std::int64_t>("bytes", "output"), static_cast<std::int64_t>(good.size()));
  EXPECT_EQ(right.get<std::int64_t>("blocks", "output"), 1);
  EXPECT_EQ(right.get<std::int64_t>("damaged", "output"), 0);
  EXPECT_TRUE(right.get<Json::Array>("texts", "output").empty());
  const Ended ids = changed(16 + 6000 + 7);
  expect_refused(ids, {"a.pack': 1 of 1 blocks of ids are damaged"});
  ASSERT_EQ(ids.lines().size(), 2U) << ids.output;
  expect_holds(ids.lines()[0], "a.pack': part 0 ('train_0.bin'): CRC-32 ");
  const Json damaged = json_of();
  EXPECT_EQ(damaged.get<std::int64_t>("damaged", "output"), 1);
  ASSERT_EQ(damaged.get<Json::Array>("texts", "output").size(), 1U);
  EXPECT_EQ(damaged.get<Json::Array>("texts", "output")[0].as<std::string>("texts"), ids.lines()[0]);
  expect_refused(changed(2), {"is no packed file of lockstep-pack"});
  expect_refused(changed(8), {"version 5, expected 1"});
  expect_refused(changed(12), {"of its first and last bytes, expected "});
  expect_refused(changed(good.size() - 70), {" of the index, expected "});
  expect_refused(changed(good.size() - 5), {"of its first and last bytes"});
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, good.size() / 2, good.size() - 1}) {
    testing::put_file(path("a.pack"), good.substr(0, size));
    const Ended ended = pack(check);
    expect_refused(ended, {size == 0 ? "is no packed file" : "it is cut off"});
    EXPECT_EQ(ended.lines().size(), 1U) << ended.output;
  }
  put_texts();
  ASSERT_EQ(pack("text:" + path("text") + " " + path("b.pack")).code, 0);
  EXPECT_EQ(pack("--check " + path("b.pack")).output,
            concat("5400 and 600 bytes of text of a vocabulary of ", nn::PackedTokens(path("b.pack")).vocabulary(),
                   ", in 2 parts of 1 byte an id, ", fs::file_size(path("b.pack")), " bytes: all checksums right\n"));
}

TEST_F(PackTokens, WhatCannotBeTrainedOnIsOneLine) {
  put_tokens();
  put_texts();
  ASSERT_EQ(pack("tokens:" + path("data") + " " + path("a.pack")).code, 0);
  ASSERT_EQ(pack("text:" + path("text") + " " + path("b.pack")).code, 0);
  nn::PackedWriter writer(path("c.pack"), nn::PackedStore::pixels, {"a"});
  const std::vector<std::uint8_t> pixels(3);
  writer.add(false, {0, 1, 1}, pixels);
  writer.add(true, {0, 1, 1}, pixels);
  writer.commit();
  const std::string out = " --devices cpu --out " + path("run");
  const std::string run = "--vocabulary 300 --data packed:" + path("a.pack") + out;
  expect_refused(train("--data packed:" + path("c.pack") + out),
                 {"c.pack': is a packed file of pictures (train_resnet reads it)", "expected a packed file of text"});
  const Ended pictures =
      testing::run_command(std::string(TRAIN_RESNET) + " --data packed:" + path("a.pack") + " --devices cpu");
  expect_refused(pictures, {"a.pack': is a packed file of text or tokens (train_text reads it)"});
  expect_refused(train("--vocabulary 299 --data packed:" + path("a.pack") + out),
                 {"part 1 ('train_1.bin'): token 299 is 299, expected one below the vocabulary's 299"});
  expect_refused(train("--vocabulary 299 --data packed:" + path("b.pack") + out),
                 {"--vocabulary is 299", "a text's tokens are its bytes"});
  expect_refused(train("--length 700 --batch-size 1 --data packed:" + path("b.pack") + out),
                 {"b.pack, the last tenth, has 600 bytes, expected more than --length 700"});
  expect_refused(train("--data packed:" + path("none") + out), {"none", "cannot be opened"});
  const std::string good = testing::get_file(path("a.pack"));
  for (const std::size_t at : {std::size_t{9}, std::size_t{50}, good.size() - 80, good.size() - 5}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    testing::put_file(path("a.pack"), bytes);
    expect_refused(train(run), {"a.pack"});
  }
  testing::put_file(path("a.pack"), good.substr(0, good.size() / 2));
  expect_refused(train(run), {"a.pack", "cut off or damaged"});
  std::string text = testing::get_file(path("b.pack"));
  text[5000] = static_cast<char>(text[5000] ^ 1);
  testing::put_file(path("b.pack"), text);
  expect_refused(train("--data packed:" + path("b.pack") + out), {"b.pack': part 0 ('train'): CRC-32 "});
}

}  // namespace
}  // namespace lockstep::tools

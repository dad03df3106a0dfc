// Tests lockstep-pack with text and tokens as users call it, and training on its files.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/token_files.hpp"
#include "tests/tools/pack_runs.hpp"

int train_text_main(int argc, char** argv);

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::expect_holds;
using testing::expect_refused;

class PackTokens : public PackTest {
 protected:
  static Ended train(const std::string& options) {
    const std::string all =
        " --layers 1 --heads 2 --width 32 --length 32 --batch-size 16 --threads 1 --sample 0 --log-every 1 --schedule "
        "constant --warmup-epochs 0 " +
        options;
    return options.find("cpu:") != std::string::npos ? testing::run_command(TRAIN_TEXT + all)
                                                     : testing::run_here(train_text_main, "train_text" + all);
  }
  /// Writes two files for training and one for validation, in three formats.
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
      put(name, text);
    }
  }
  /// Trains two epochs on `source`, two on `file`, and one on each of them. Expects the same state from all three runs.
  void expect_same_runs(const std::string& source, const std::string& file, const std::string& options) const {
    const std::string packed = options + " --data packed:" + file;
    const Ended one = train("--epochs 2 --data " + source + options + out("one")).finished();
    for (const char* ranks : {" --devices cpu", " --workers 2 --devices cpu"}) {
      const Ended other = train("--epochs 2" + packed + ranks + out("other")).finished();
      EXPECT_TRUE(state("other") == state("one")) << other.output;
      fs::remove_all(path("other"));
    }
    train("--epochs 1 --data " + source + options + out("parts")).finished();
    EXPECT_FALSE(state("parts") == state("one"));
    train("--epochs 2 --resume auto" + packed + out("parts"))
        .finished({}, {{"  resuming   ", 1}, {"training_data", 0}, {"test_data", 0}});
    EXPECT_TRUE(state("parts") == state("one"));
    if (LOCKSTEP_HAS_MPI != 0) {
      train("--epochs 2 --devices cpu:2 --data " + source + options + out("two")).finished();
      const Ended ranks = train("--epochs 2 --devices cpu:2" + packed + out("other")).finished();
      EXPECT_TRUE(state("other") == state("two")) << ranks.output;
    }
  }
};

TEST_F(PackTokens, OfTokensTrainToTheSameBytes) {
  put_tokens();
  pack("tokens:" + path("data") + " " + path("a.pack")).finished();
  expect_same_runs("tokens:" + path("data"), path("a.pack"), " --vocabulary 300");
  // A file with other tokens must be refused when the run resumes.
  testing::write_tokens(path("data/train_1.bin"), 20240801, testing::token_cycle(1500, 299));
  pack("tokens:" + path("data") + " " + path("b.pack")).finished();
  train("--vocabulary 300 --epochs 3 --resume auto --data packed:" + path("b.pack") + out("parts"))
      .finished({}, {{"options 'training_data': checkpoint \"", 1}, {"test_data", 0}});
}

TEST_F(PackTokens, OfTextTrainToTheSameBytes) {
  put_texts();
  pack("text:" + path("text") + " " + path("a.pack")).finished();
  expect_same_runs(path("text"), path("a.pack"), "");
}

TEST_F(PackTokens, OfAFileIsWhatTheTextIs) {
  put_texts();
  pack("text:" + path("text/a.md") + " " + path("a.pack")).finished();
  const std::string text = get("text/a.md");
  const nn::PackedTokens file(path("a.pack"));
  EXPECT_EQ(std::string(file.text(0)), text.substr(0, 1800));
  EXPECT_EQ(std::string(file.text(1)), text.substr(1800));
}

TEST_F(PackTokens, SaysWhatItDoesAndDid) {
  put_tokens();
  const std::string call = "tokens:" + path("data") + " " + path("a.pack");
  pack(call).finished({"tokens:" + path("data") + ": 3 files, 4500 tokens to train on and 700 for validation",
                       "ids of 1, 2 or 4 bytes, as the largest needs", path("a.pack") + "; appears when it is whole",
                       path("a.pack") + ": 4500 tokens to train on and 700 for validation, 10.",
                       "the largest id is 299; 2 bytes each",
                       "train_text --data packed:" + path("a.pack") + " --vocabulary N"});
  expect_refused(pack(call), {path("a.pack"), "exists", "--overwrite"});
  const std::string before = get("a.pack");
  const Json summary = json_of(call + " --overwrite --vocabulary 300");
  EXPECT_EQ(get("a.pack"), before) << "equal sources give equal bytes";
  testing::expect_members(summary, {{"source", "tokens:" + path("data")},
                                    {"ids", "tokens"},
                                    {"files", 3},
                                    {"training_tokens", 4500},
                                    {"validation_tokens", 700},
                                    {"vocabulary", 300},
                                    {"bytes_per_id", 2},
                                    {"bytes", std::uint64_t{before.size()}}});

  testing::expect_refusals(pack, {{call + " --overwrite --vocabulary 299",
                                   {"train_1.bin", "token 299 is 299, expected one below the vocabulary's 299"}},
                                  {call + " --overwrite --vocabulary 0", {"vocabulary is 0", "expected 1 to"}}});
  for (const std::string option :
       {"--store pixels", "--resize 3", "--val-fraction 0.1", "--seed 3", "--skip-damaged", "--threads 2"}) {
    expect_refused(pack(call + " --overwrite " + option),
                   {option.substr(0, option.find(' ')) + " is given with tokens:" + path("data")});
  }
  EXPECT_EQ(get("a.pack"), before);
  put_texts();
  put("empty.txt", "");
  put("data/val.bin", "");
  const std::string file = " " + path("b.pack");
  testing::expect_refusals(
      pack, {{path("data") + file + " --vocabulary 4", {"--vocabulary is 4 with a folder of pictures"}},
             {"text:" + path("text") + file + " --vocabulary 4", {"a text's tokens are its"}},
             {"text:" + path("none") + file, {path("none"), "no such file or folder"}},
             {"tokens:" + path("text") + file, {path("text"), "train.bin"}},
             {"text:" + path("text") + " " + path("text/b.pack"), {"lies in", "expected a place outside"}},
             {"text:" + file, {"expected a path after the colon"}},
             {"text:" + path("empty.txt") + file, {"0 bytes, expected at least 10"}},
             {"tokens:" + path("data") + file, {"val.bin", "0 bytes"}}});
  EXPECT_FALSE(fs::exists(path("b.pack")));
  pack("--help").finished({"tokens:DIR", "text:PATH", "--vocabulary"});
}

TEST_F(PackTokens, JsonNamesFilesOfAnyBytes) {
  put_tokens();
  fs::rename(path("data"), path("d\xff"));
  testing::expect_members(json_of("tokens:" + path("d\xff ") + path("a\xff.pack")),
                          {{"source", "tokens:" + path("d\\xff")}, {"file", path("a\\xff.pack")}});
  testing::expect_members(json_of("--check " + path("a\xff.pack")), {{"file", path("a\\xff.pack")}});
}

// The test uses a FIFO and not a device, because root could really replace a device.
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
  pack("tokens:" + path("data") + " " + path("a.pack")).finished();
  const std::string good = get("a.pack");
  const std::string check = "--check " + path("a.pack");
  for (const char* options : {"", " --threads 1", " --threads 5"}) {
    const Ended whole = pack(check + options).finished();
    EXPECT_EQ(whole.output, concat("4500 and 700 tokens of a vocabulary of 300, in 3 parts of 2 bytes an id, ",
                                   good.size(), " bytes: all checksums right\n"));
  }
  testing::expect_members(json_of(check), {{"file", path("a.pack")},
                                           {"ids", "tokens"},
                                           {"vocabulary", 300},
                                           {"parts", 3},
                                           {"training_tokens", 4500},
                                           {"validation_tokens", 700},
                                           {"bytes_per_id", 2},
                                           {"bytes", std::uint64_t{good.size()}},
                                           {"blocks", 1},
                                           {"damaged", 0},
                                           {"texts", Json::Array{}}});
  std::string one_bit = good;
  one_bit.at(16 + 6000 + 7) = static_cast<char>(one_bit.at(16 + 6000 + 7) ^ 4);
  put("a.pack", one_bit);
  const Ended ids = pack(check);
  expect_refused(ids, {"a.pack': 1 of 1 blocks of ids are damaged"});
  ASSERT_EQ(ids.lines().size(), 2U) << ids.output;
  testing::expect_holds(ids.lines()[0], "a.pack': part 0 ('train_0.bin'): CRC-32 ");
  testing::expect_members(json_of(check), {{"damaged", 1}, {"texts", Json::Array{ids.lines()[0]}}});
  expect_damage_is_told(good,
                        {{2, {"begins as no packed file does"}},
                         {8, {"version 5, expected 1"}},
                         {12, {"of its first and last bytes, expected "}},
                         {good.size() - 70, {" of the index, expected "}},
                         {good.size() - 5, {"of its first and last bytes"}}},
                        [&](const std::string& bytes) {
                          put("a.pack", bytes);
                          return pack(check);
                        });
  put_texts();
  pack("text:" + path("text") + " " + path("b.pack")).finished();
  EXPECT_EQ(pack("--check " + path("b.pack")).output,
            concat("5400 and 600 bytes of text of a vocabulary of ", nn::PackedTokens(path("b.pack")).vocabulary(),
                   ", in 2 parts of 1 byte an id, ", fs::file_size(path("b.pack")), " bytes: all checksums right\n"));
}

TEST_F(PackTokens, WhatCannotBeTrainedOnIsOneLine) {
  put_tokens();
  put_texts();
  pack("tokens:" + path("data") + " " + path("a.pack")).finished();
  pack("text:" + path("text") + " " + path("b.pack")).finished();
  nn::PackedWriter writer(path("c.pack"), nn::PackedStore::pixels, {"a"});
  const std::vector<std::uint8_t> pixels(3);
  writer.add(false, {0, 1, 1}, pixels);
  writer.add(true, {0, 1, 1}, pixels);
  writer.commit();
  const std::string tokens = " --data packed:" + path("a.pack") + " --devices cpu" + out("run");
  const std::string text = " --data packed:" + path("b.pack") + " --devices cpu" + out("run");
  testing::expect_refusals(
      train, {{"--data packed:" + path("c.pack") + " --devices cpu" + out("run"),
               {"c.pack': is a packed file of pictures (train_resnet reads it)", "expected a packed file of text"}},
              {"--vocabulary 299" + tokens,
               {"part 1 ('train_1.bin'): token 299 is 299, expected one below the vocabulary's 299"}},
              {"--vocabulary 299" + text, {"--vocabulary is 299", "a text's tokens are its bytes"}},
              {"--length 700 --batch-size 1" + text,
               {"b.pack, the last tenth, has 600 bytes, expected more than --length 700"}},
              {"--data packed:" + path("none") + " --devices cpu" + out("run"), {"none", "cannot be opened"}}});
  expect_refused(testing::run_here(train_resnet_main, "train_resnet --devices cpu --data packed:" + path("a.pack")),
                 {"a.pack': is a packed file of text or tokens (train_text reads it)"});
  const std::string good = get("a.pack");
  for (const std::size_t at : {std::size_t{9}, std::size_t{50}, good.size() - 80, good.size() - 5}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    put("a.pack", bytes);
    expect_refused(train("--vocabulary 300" + tokens), {"a.pack"});
  }
  put("a.pack", good.substr(0, good.size() / 2));
  expect_refused(train("--vocabulary 300" + tokens), {"a.pack", "cut off or damaged"});
  std::string bytes = get("b.pack");
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
  put("b.pack", bytes);
  expect_refused(train(text), {"b.pack': part 0 ('train'): CRC-32 "});
}

}  // namespace
}  // namespace lockstep::tools

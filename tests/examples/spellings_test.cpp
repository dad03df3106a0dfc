// Words of other programs on the command line.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "cli/command_line.hpp"
#include "cli/spellings.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::cli {
namespace {

class Spellings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"--data", "--model", "--devices", "--nodes", "--dtype", "--resume", "--lr"}) {
      app_.add_option(name, text_);
    }
    app_.add_option("--batch-size", number_);
    app_.add_flag("--sync-batch-norm", flag_);
  }
  std::string here(const std::vector<std::string>& unknown) { return spelled_here(app_, unknown); }
  CLI::App app_;
  std::string text_;
  std::int64_t number_ = 0;
  bool flag_ = false;
};

TEST_F(Spellings, OwnOptionsWrittenOtherwise) {
  EXPECT_EQ(here({"data=/x", "model=resnet50", "devices=2", "batch_size=256", "num_nodes=1"}),
            "--data /x --model resnet50 --devices 2 --batch-size 256 --nodes 1");
  EXPECT_EQ(here({"--batch_size", "4"}), "--batch-size 4");
  EXPECT_EQ(here({"data=a=b"}), "--data a=b") << "the value has the second '='";
}

TEST_F(Spellings, WordsOfOtherPrograms) {
  EXPECT_EQ(here({"--accelerator", "gpu", "--precision", "bf16-mixed", "--num-nodes=2"}),
            "--devices gpu --dtype bf16 --nodes 2");
  EXPECT_EQ(here({"--precision=32-true", "--ckpt_path", "last"}), "--dtype fp32 --resume auto");
  EXPECT_EQ(here({"optim_args.lr=0.1"}), "--lr 0.1");
  EXPECT_EQ(here({"--gpus", "--sync_batchnorm"}), "--devices --sync-batch-norm");
  EXPECT_EQ(here({"sync_batchnorm=True"}), "--sync-batch-norm") << "a flag takes no value";
}

TEST_F(Spellings, WhatNothingHereKnows) {
  EXPECT_EQ(here({"--nonsense", "7", "more", "data", "--max_epochs", "3", "=", "--", "-", ""}), "")
      << "a word alone, an option that this program does not have, and nothing at all";
}

TEST_F(Spellings, AnErrorSaysWhatToWrite) {
  const auto error = [&](const std::vector<const char*>& arguments) {
    return testing::error_of<UsageError>(
        [&] { static_cast<void>(parse_command_line(app_, static_cast<int>(arguments.size()), arguments.data(), {})); });
  };
  EXPECT_EQ(
      error({"p", "batch_size=8", "--precision", "16-mixed"}),
      "unknown on the command line: batch_size=8 --precision 16-mixed (write --batch-size 8 --dtype fp16; --help lists "
      "the options, docs/coming_from.md has words of other programs)");
}

TEST_F(Spellings, ControlNothingToSay) {
  const std::vector<const char*> arguments{"p", "--nonsense"};
  EXPECT_EQ(
      testing::error_of<UsageError>([&] { static_cast<void>(parse_command_line(app_, 2, arguments.data(), {})); }),
      "unknown on the command line: --nonsense (--help lists the options)");
}

}  // namespace
}  // namespace lockstep::cli

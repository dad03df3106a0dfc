// Tests the hints for option names of other programs on the command line.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/spellings.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::cli {
namespace {

class Spellings : public ::testing::Test {
 protected:
  void SetUp() override { add_options(app_); }
  void add_options(CLI::App& app) {
    for (const char* name : {"--data", "--model", "--devices", "--nodes", "--dtype", "--resume", "--lr"}) {
      app.add_option(name, text_);
    }
    app.add_option("--batch-size", number_);
    app.add_flag("--sync-batch-norm", flag_);
  }
  std::string error_of(const std::vector<const char*>& arguments, const ConfigFile& file = {}) {
    CLI::App app;
    add_options(app);
    return testing::error_of<UsageError>(
        [&] { (void)parse_command_line(app, static_cast<int>(arguments.size()), arguments.data(), file); });
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

TEST_F(Spellings, AKindOfDevicesAndTheirNumberAreOneOption) {
  EXPECT_EQ(here({"accelerator=gpu", "devices=2"}), "--devices 2");
  EXPECT_EQ(here({"--num-nodes", "1", "--devices_", "3", "--accelerator", "cpu", "devices=2"}),
            "--nodes 1 --devices cpu:2");
  EXPECT_EQ(here({"accelerator=cuda"}), "--devices gpu");
  EXPECT_EQ(here({"--auto_select_gpus=True", "lr=1"}), "--devices usable:N --lr 1");
}

TEST_F(Spellings, TheNearestOption) {
  EXPECT_EQ(nearest_option(app_, "--batchsize=3"), "--batch-size");
  EXPECT_EQ(nearest_option(app_, "--device"), "--devices");
  EXPECT_EQ(nearest_option(app_, "--modle"), "--model") << "two letters changed places";
  EXPECT_EQ(nearest_option(app_, "--sync_batch_nrom"), "--sync-batch-norm");
  for (const char* far : {"--nonsense", "--", "-x", "--lx", "--epochs"}) {
    EXPECT_EQ(nearest_option(app_, far), "") << far;
  }
}

TEST_F(Spellings, WhatNothingHereKnows) {
  EXPECT_EQ(here({"--nonsense", "7", "more", "data", "--max_epochs", "3", "=", "--", "-", ""}), "")
      << "a word alone, an option that this program does not have, and nothing at all";
}

TEST_F(Spellings, AnErrorSaysWhatToWrite) {
  EXPECT_EQ(
      error_of({"p", "batch_size=8", "--precision", "16-mixed"}),
      "unknown on the command line: batch_size=8 --precision 16-mixed (write --batch-size 8 --dtype fp16; --help lists "
      "the options, docs/coming_from.md has words of other programs)");
  EXPECT_EQ(error_of({"p", "more", "--device", "2"}),
            "unknown on the command line: more --device 2 (did you mean --devices? --help lists the options)");
}

/// Options in a file must give the same hints as options on the command line.
TEST_F(Spellings, AnErrorInAFileSaysWhatToWrite) {
  const auto error = [&](const std::string& text) { return error_of({"p"}, {.name = "a.toml", .text = text}); };
  EXPECT_EQ(error("learning_rate = 0.1\n"),
            "a.toml:1: learning_rate is no option (write --lr 0.1; --help lists the options, here they have no dashes, "
            "docs/coming_from.md has words of other programs)");
  EXPECT_EQ(error("\nlrr = 0.1\n"),
            "a.toml:2: lrr is no option (did you mean --lr? --help lists the options, here they have no dashes)");
}

TEST_F(Spellings, ControlNothingToSay) {
  const std::vector<const char*> arguments{"p", "--nonsense"};
  EXPECT_EQ(
      testing::error_of<UsageError>([&] { static_cast<void>(parse_command_line(app_, 2, arguments.data(), {})); }),
      "unknown on the command line: --nonsense (--help lists the options)");
}

}  // namespace
}  // namespace lockstep::cli

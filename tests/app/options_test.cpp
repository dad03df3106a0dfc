// Tests the options that training programs share. Every refusal must be one line that names the option, its value and
// the expected values.
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/launch_options.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep {
namespace {

/// Returns the options that a training program reads from a command line. `options` has the program's defaults.
nn::TrainingOptions parsed(const std::string& line, nn::TrainingOptions options = {}) {
  cli::LaunchOptions launch;
  Schema schema;
  cli::describe(schema, launch, cli::Restarts::yes);
  nn::describe(schema, options);
  std::vector<std::string> words{"program"};
  std::istringstream in(line);
  for (std::string word; in >> word;) {
    words.push_back(word);
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  const std::string text = cli::parse_command_line({"program", "about\n", ""}, schema,
                                                   static_cast<int>(arguments.size()), arguments.data(), {});
  EXPECT_EQ(text, "");
  options.chosen = schema.given(/*kept_only=*/true);
  nn::require_training_options(options);
  return options;
}

struct Refusal {
  const char* line;
  std::vector<const char*> words;
};

class BadOptions : public ::testing::TestWithParam<Refusal> {};

TEST_P(BadOptions, AreNamed) {
  const std::string text = testing::error_of<UsageError>([] { (void)parsed(GetParam().line); });
  for (const char* word : GetParam().words) {
    testing::expect_holds(text, word);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, BadOptions,
    ::testing::Values(
        Refusal{"--shuffle-chunk -1", {"--shuffle-chunk is -1, expected at least 0"}},
        Refusal{"--accumulate 0", {"--accumulate", "0", "at least 1"}},
        Refusal{"--batch-per-rank 0", {"--batch-per-rank", "0", "at least 1"}},
        Refusal{"--epochs -3", {"--epochs", "-3", "at least 1"}},
        Refusal{"--threads 100000", {"--threads", "100000", "at most 1024"}},
        Refusal{"--bucket-mb 0 --cost c.json", {"--bucket-mb", "'0'", "c.json", "one of the two"}},
        Refusal{"--bucket-mb 1e-7", {"--bucket-mb", "1e-7", "a byte"}},
        Refusal{"--epochs 9999999999999999999", {"--epochs", "'9999999999999999999'", "at most 9223372036854775807"}},
        Refusal{"--seed 18446744073709551616", {"--seed", "'18446744073709551616'", "at most 18446744073709551615"}},
        Refusal{"--patience -1", {"--patience", "-1", "at least 0"}},
        Refusal{"--max-time nan", {"--max-time", "nan", "at least 0"}},
        Refusal{"--stop-within 0", {"--stop-within", "0", "above 0"}},
        Refusal{"--stop-within nan", {"--stop-within", "nan", "above 0"}},
        Refusal{"--report-waits -1", {"--report-waits", "-1", "at least 0"}},
        Refusal{"--watchdog -1", {"--watchdog", "-1", "0 for none"}},
        Refusal{"--watchdog 0.5", {"--watchdog", "0.5", "at least 1"}},
        Refusal{"--watchdog inf", {"--watchdog", "inf", "0 for none"}},
        Refusal{"--stall-report 600", {"--stall-report", "600", "fewer seconds"}},
        Refusal{"--stall-report nan", {"--stall-report", "nan", "fewer seconds"}},
        Refusal{"--tune off --choices c.json", {"--choices", "c.json", "--tune off"}},
        Refusal{"--workspace-limit -1", {"--workspace-limit", "-1", "at least 0"}},
        Refusal{"--lr fast", {"--lr", "fast", "auto"}}, Refusal{"--lr inf", {"--lr", "inf"}},
        Refusal{"--weight-decay inf", {"--weight-decay", "inf"}}, Refusal{"--seed -1", {"--seed", "-1", "at least 0"}},
        Refusal{"--dtype f8", {"--dtype", "f8", "bf16"}},
        Refusal{"--dtype f64 --reduce-dtype bf16", {"--reduce-dtype", "bf16", "--dtype f64"}},
        Refusal{"--loss-scale -2", {"--loss-scale", "-2"}}, Refusal{"--momentum 1", {"--momentum", "1", "value < 1"}},
        Refusal{"--optimizer adam --nesterov", {"--nesterov", "sgd"}}, Refusal{"--beta1 -0.5", {"--beta1", "-0.5"}},
        Refusal{"--beta2 1", {"--beta2", "1"}}, Refusal{"--epsilon 0", {"--epsilon", "0"}},
        Refusal{"--trust-coefficient 0", {"--trust-coefficient", "0", "above 0"}},
        Refusal{"--clip-norm -1", {"--clip-norm", "-1", "at least 0"}},
        Refusal{"--clip-value -1", {"--clip-value", "-1", "at least 0"}},
        Refusal{"--clip-value 1 --optimizer lars", {"--clip-value", "1", "lars"}},
        Refusal{"--top-k -1", {"--top-k", "-1", "at least 0"}}));

/// Returns the training options that a program reads from the text of a config file and from a command line.
nn::TrainingOptions with_file(const std::string& toml, const std::vector<const char*>& given) {
  nn::TrainingOptions options;
  cli::LaunchOptions launch;
  Schema schema;
  cli::describe(schema, launch, cli::Restarts::yes);
  nn::describe(schema, options);
  std::vector<const char*> arguments{"program"};
  arguments.insert(arguments.end(), given.begin(), given.end());
  const cli::ConfigFile file{toml.starts_with("{") ? "config.json" : "a.toml", toml};
  EXPECT_EQ(cli::parse_command_line({"program", "about\n", "", true}, schema, static_cast<int>(arguments.size()),
                                    arguments.data(), file),
            "");
  return options;
}

TEST(TrainingOptions, AFileCountsBesideEmptyArguments) {
  const nn::TrainingOptions options = with_file("lr = 0.5\nmomentum = 0.25\n", {"--cost", ""});
  EXPECT_EQ(options.lr, "0.5");
  EXPECT_EQ(options.trainer.step.optimizer.momentum, 0.25);
}

TEST(TrainingOptions, AnEmptyValueOfAFileTakesNoOtherOption) {
  const nn::TrainingOptions options =
      with_file(R"({"chosen": {"choices": "", "cost": "", "epochs": "7", "milestones": "", "seed": "5"}})", {});
  EXPECT_EQ(options.run.epochs, 7);
  EXPECT_EQ(options.trainer.step.seed, 5U);
  EXPECT_EQ(options.cost + options.choices, "");
  EXPECT_TRUE(options.milestones.empty());
}

TEST(TrainingOptions, ANegationLeavesOtherDecaysOfAFileAlone) {
  EXPECT_EQ(with_file("norm-weight-decay = 0.02\n", {"--decay-norm"}).trainer.step.groups.norm_weight_decay, 0.02);
  EXPECT_FALSE(with_file("norm-weight-decay = 0.02\n", {"--no-decay-norm"}).trainer.step.groups.norm_weight_decay);
  EXPECT_TRUE(with_file("no-decay-norm = true\n", {"--decay-norm"}).trainer.step.decay_all);
  EXPECT_FALSE(with_file("decay-norm = true\n", {"--no-decay-norm"}).trainer.step.decay_all);
}

TEST(TrainingOptions, FlagsTakeWhatTheyTook) {
  for (const char* yes : {"nesterov = 1", "nesterov = \"on\"", "nesterov = \"True\"", "nesterov = true"}) {
    EXPECT_TRUE(with_file(yes, {}).trainer.step.optimizer.nesterov) << yes;
  }
  EXPECT_FALSE(with_file("nesterov = \"off\"", {}).trainer.step.optimizer.nesterov);
}

TEST(TrainingOptions, DefaultsAreAProgramsOwnAndChoicesAreKnown) {
  nn::TrainingOptions own;
  own.trainer.step.decay_all = false;
  own.run.epochs = 10;
  const nn::TrainingOptions plain = parsed("", own);
  EXPECT_EQ(plain.run.epochs, 10);
  EXPECT_FALSE(plain.trainer.step.decay_all);
  EXPECT_TRUE(plain.chosen.empty());
  const nn::TrainingOptions given = parsed("--decay-norm --epochs 10 --optimizer lars --out x --ema 0.5", own);
  EXPECT_TRUE(given.trainer.step.decay_all);
  EXPECT_EQ(given.trainer.step.optimizer.kind, nn::OptimizerKind::lars);
  EXPECT_EQ(given.trainer.step.average.decay, 0.5);
  const std::map<std::string, std::string> expected{
      {"no_decay_norm", "false"}, {"epochs", "10"}, {"optimizer", "lars"}, {"ema", "0.5"}};
  EXPECT_EQ(given.chosen, expected) << "--out is of one start";
  EXPECT_THROW((void)parsed("--norm-weight-decay 0.1 --no-decay-norm"), UsageError);
  EXPECT_NO_THROW((void)parsed("--norm-weight-decay 0.1", own)) << "the default gives way";
}

}  // namespace
}  // namespace lockstep

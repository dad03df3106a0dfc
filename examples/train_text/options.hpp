#pragma once

#include <cstdint>
#include <string>

#include <lockstep/app/options/training_options.hpp>

#include "app/cli/launch_options.hpp"
#include "app/cli/training_main.hpp"

namespace train_text {

/// The options of the command line.
struct Options {
  std::string data;                 ///< value of --data; empty: the documents of lockstep
  std::int64_t vocabulary = 50257;  ///< size of the vocabulary of token data
  bool vocabulary_given = false;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t length = 128;
  std::int64_t sample = 300;
  std::string prompt;
  double temperature = 0.8;
  lockstep::cli::LaunchOptions launch;
  lockstep::nn::TrainingOptions training;
};

/// Throws UsageError when --vocabulary was given for text.
void require_no_vocabulary(const Options& options);

/// Parses the command line; `config` is the file of --config. A UsageError names the option and the expected value.
[[nodiscard]] lockstep::cli::Parsed<Options> parse(int argc, const char* const* argv,
                                                   const lockstep::cli::ConfigFile& config);

}  // namespace train_text

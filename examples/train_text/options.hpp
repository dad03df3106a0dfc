#pragma once

#include <cstdint>
#include <string>

#include "cli/config_file.hpp"
#include "cli/launch_options.hpp"

namespace train_text {

/// The command line as given.
struct Options {
  std::string data;  ///< empty: the documents of lockstep
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t length = 128;
  std::string dtype = "fp32";
  std::int64_t batch_size = 16;
  std::int64_t epochs = 10;
  std::int64_t steps = 0;  ///< 0: no limit
  double lr = 2e-3;
  std::uint64_t seed = 1;
  lockstep::cli::LaunchOptions launch;
  int threads = 0;
  std::string out = "text.out";
  std::string resume;
  std::int64_t log_every = 10;
  std::int64_t checkpoint_every = 0;
  std::int64_t sample = 300;
  std::string prompt;
  double temperature = 0.8;
};

/// What parsing led to: options, or a text to print (--help, --version) instead of a run.
struct Parsed {
  Options options;
  std::string text;
};

/// UsageError naming the option and what was expected. `config`: the file of --config.
[[nodiscard]] Parsed parse(int argc, const char* const* argv, const lockstep::cli::ConfigFile& config);

}  // namespace train_text

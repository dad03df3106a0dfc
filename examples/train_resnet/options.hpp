#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "cli/config_file.hpp"
#include "cli/launch_options.hpp"

namespace train_resnet {

enum class Switch : unsigned char { off, on, automatic };

/// The command line as given; `automatic` and 0 values are resolved later, when data and ranks are known.
struct Options {
  std::string model = "resnet20";
  std::vector<std::int64_t> hidden;
  lockstep::nn::DataOptions data;
  std::int64_t epochs = 0;  ///< 0: the default of the data set
  std::int64_t steps = 0;
  std::optional<std::int64_t> batch_size;      ///< of all ranks; 128 when neither is given
  std::optional<std::int64_t> batch_per_rank;  ///< of a rank, in one pass
  std::int64_t accumulate = 1;
  std::string lr = "auto";
  std::string schedule = "cosine";
  std::int64_t warmup_steps = -1;  ///< -1: a twentieth of the run
  std::string optimizer = "sgd";
  double momentum = 0.9;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double trust_coefficient = 0.001;
  double clip_norm = 0;
  bool skip_non_finite = false;
  std::string loss_scale = "auto";
  double weight_decay = 1e-4;
  bool no_decay_norm = false;
  double label_smoothing = 0;
  int top_k = 0;
  std::int64_t pad = -1;  ///< -1: the default of the data set
  Switch flip = Switch::automatic;
  bool keep_last = false;
  std::uint64_t seed = 1;
  std::string dtype = "fp32";
  lockstep::cli::LaunchOptions launch;
  int threads = 0;
  double bucket_mb = 0;
  bool bucket_auto = false;  ///< buckets by the costs in `cost`
  std::string cost;
  Switch overlap = Switch::automatic;
  std::string reduce_dtype = "fp32";
  Switch cuda_graph = Switch::automatic;
  Switch tune = Switch::automatic;   ///< automatic: on GPUs, and where `choices` is given
  std::string choices;               ///< file of what was timed; empty: none
  std::int64_t workspace_mb = 1024;  ///< most for one library call, when tuning
  int workers = -1;                  ///< -1: by the rule of nn/run/run_rules.hpp
  std::int64_t log_every = 10;
  std::int64_t report_waits = 0;  ///< steps that count as the first ones; 0: no report
  std::int64_t checkpoint_every = 0;
  std::string out = "out";
  std::string init;
  std::string resume;
  std::string evaluate;
  double watchdog = 600;  ///< seconds without progress; 0: none
  bool dry_run = false;
};

/// What parsing led to: options, or a text to print (--help, --version) instead of a run.
struct Parsed {
  Options options;
  std::string text;
};

/// UsageError naming the option and what was expected. `config`: the file of --config.
[[nodiscard]] Parsed parse(int argc, const char* const* argv, const lockstep::cli::ConfigFile& config);

/// The --lr that was given; none for "auto".
[[nodiscard]] std::optional<double> given_learning_rate(const Options& options);

/// The learning rate that "auto" begins with: `base` at a batch of `reference` samples. 0.1 at 128 for small images (He
/// et al. 2015), 0.1 at 256 for large ones (Goyal et al. 2017), 0.02 at 128 for mlp; 100 times that with LARS, whose
/// trust ratios are small; 0.001 at any batch (reference 0) with Adam and AdamW.
struct BaseRate {
  double base;
  std::int64_t reference;
};
[[nodiscard]] BaseRate base_learning_rate(const Options& options);

}  // namespace train_resnet

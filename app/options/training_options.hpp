#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Whether library calls are timed. fast: without library engines that are compiled at run time. automatic: `on` if a
/// GPU runs without virtual ranks, or if TrainingOptions::choices is given; otherwise `off`.
enum class Tune : unsigned char { off, fast, on, automatic };

/// The given options that training programs share. A program sets its own defaults first. `automatic` and negative
/// values are resolved later, when data and ranks are known. describe() explains each option and its allowed values.
struct TrainingOptions {
  /// Options that the user gave to this run (Schema::given()), with the program's own options. config.json keeps them,
  /// so that --config OUT/config.json repeats the run.
  std::map<std::string, std::string> chosen{};
  std::string recipe;  ///< the recipe's name or file, for the header; other options take precedence

  /// Options of the trainer that are taken as they are. resolve() sets batches, steps, rates and workers, which depend
  /// on data and ranks.
  TrainerOptions trainer{.step = {.optimizer = {.loss_scale = {.kind = LossScale::Kind::automatic}},
                                  .weight_decay = 1e-4,
                                  .average = {.copied_updates = -1}},  // -1: as many updates as the warm-up has
                         .schedule = {.kind = Schedule::Kind::cosine}};
  RunOptions run{.epochs = 6, .keep = 1};

  // Training.
  /// Number of samples in one update over all ranks. If neither size is given, default_batch is taken.
  std::optional<std::int64_t> batch_size{};
  std::optional<std::int64_t> batch_per_rank{};  ///< number of samples of a rank in one micro-batch
  std::int64_t default_batch = 128;
  std::string lr = "auto";
  std::int64_t warmup_steps = -1;         ///< number of warm-up steps; -1: a twentieth of the run
  std::optional<double> warmup_epochs{};  ///< length of the warm-up in epochs, instead of warmup_steps
  std::vector<double> milestones{};       ///< epochs, for the schedule `step`; empty: 1/2 and 3/4 of the run
  std::vector<std::string> freeze{};      ///< names for Model::freezing()
  int workers = -1;                       ///< reading threads per rank; -1: the rule of nn/run/run_rules.hpp

  // Ranks.
  int threads = 0;  ///< compute threads of a rank on the host; 0: RankContext decides
  comm::RankContextOptions::Overlap overlap = comm::RankContextOptions::Overlap::automatic;
  /// Size of gradient buckets in MB. Empty: buckets are planned by `cost`, or all are large except a small last one.
  std::string bucket_mb;
  std::string cost;  ///< path of lockstep-cost's file cost.json
  std::string reduce_dtype = "fp32";
  std::string compress = "none";  ///< a name that compression_named() takes
  std::string strategy = "ddp";   ///< a name that strategy_named() takes
  /// "layout": gradients are added in rank order. "world": the numbers are those of `virtual_ranks` ranks, on any
  /// number of ranks.
  std::string reproducible = "run";
  bool dependent_launches = false;  ///< comm::RankContextOptions::dependent_launches
  Tune tune = Tune::automatic;
  std::string choices;               ///< file of timed choices; empty: none
  bool verify_choices = false;       ///< true: sets PlanOptions::verifier
  std::int64_t workspace_mb = 1024;  ///< memory limit of one library call in MB while choices are timed
  double watchdog = 600;             ///< seconds without progress after which the job ends; 0: no watchdog
  /// Seconds within which the run must react to a stop; a longer step causes a warning. Not given:
  /// RunOptions::stop_within, and no warning.
  std::optional<double> stop_within;
  std::optional<double> stall_report;  ///< Watchdog::report_after() in seconds; not given: a quarter of `watchdog`

  // Results.
  std::string out = "out";
  bool tensorboard = false;       ///< true: also writes OUT/tensorboard
  int restarts = 0;               ///< how often the job may be started again; with copy_every at least once
  std::int64_t report_waits = 0;  ///< number of first steps in the report; 0: no report
  std::string trace;              ///< file of the timeline; empty: none
  std::string trace_steps;        ///< "A:B" (nn/run/observers/run_trace.hpp); empty: default_trace_steps()
  std::string init;
  std::string resume;
  bool overwrite = false;  ///< true: deletes the checkpoints of an earlier run in `out`
  std::string evaluate;
  bool dry_run = false;
  bool fused_norms = false;  ///< with describe_gpu: PlanOptions::norms_in_convolutions
  std::string describe_gpu;  ///< GPU for which dry_run plans and predicts the time (nn/plan/gpu_prediction.hpp)
};

/// The strategy that a name of --strategy means: ddp, zero1, single (ddp on one rank), or another tool's name for one
/// of these.
struct NamedStrategy {
  Strategy strategy = Strategy::ddp;
  bool one_rank = false;  ///< true: the job must have one rank
  std::string note{};     ///< one line about the meaning of another tool's name; empty for the three names above
};
/// Returns the strategy with this name. UsageError for other names.
[[nodiscard]] NamedStrategy strategy_named(const std::string& name);

/// Returns the sums that a name of --compress means (comm::sums_named()). UsageError for other names.
[[nodiscard]] comm::SumOptions compression_named(const std::string& name);

/// Adds the groups Training, Ranks and Results. The values in `options` are the defaults.
void describe(Schema& schema, TrainingOptions& options);

/// Checks all that needs neither data nor ranks. UsageError names the option and what was expected.
void require_training_options(const TrainingOptions& options);

/// Returns the value of --lr, or no value for "auto".
[[nodiscard]] std::optional<double> given_learning_rate(const TrainingOptions& options);

/// The learning rate from which "auto" starts: `base` for a batch of `reference` samples; if that is 0, for any batch.
struct BaseRate {
  double base = 0.1;
  std::int64_t reference = 256;
};

/// Returns the options of a rank's threads and communicator (comm/launch/rank_context.hpp).
[[nodiscard]] comm::RankContextOptions rank_context_options(const TrainingOptions& options, bool bind_near_gpu);

/// The options after data and ranks have become known.
struct ResolvedTraining {
  TrainerOptions trainer;  ///< without buckets planned by cost, which need the communicator's cost file
  RunRules rules;
  std::int64_t total_steps = 0;
  std::vector<std::string> warnings;
};
/// Resolves the options. training_samples is the size of the training set. UsageError names the option.
[[nodiscard]] ResolvedTraining resolve(const TrainingOptions& options, std::int64_t training_samples,
                                       const BaseRate& rate, int ranks, int rank, const comm::CpuShare& share);

}  // namespace lockstep::nn

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

/// Says whether library calls are timed. `fast` leaves out library engines that are compiled at run time. `automatic`
/// is `on` for a GPU without virtual ranks, or if TrainingOptions::choices names a file; otherwise it is `off`.
enum class Tune : unsigned char { off, fast, on, automatic };

/// The options that training programs share, as the user gives them. A program sets its own defaults first. When data
/// and ranks are known, resolve() replaces `automatic` and negative values. describe() explains each option and its
/// allowed values.
struct TrainingOptions {
  /// The options that the user gave to this run (Schema::given()), including the options that only this program has.
  /// config.json keeps these options, so that --config OUT/config.json repeats the run.
  std::map<std::string, std::string> chosen{};
  std::string recipe;  ///< name or file of the recipe, for the header; other options take precedence

  /// Options of the trainer. resolve() replaces batches, steps, rates and workers, which depend on data and ranks.
  TrainerOptions trainer{.step = {.optimizer = {.loss_scale = {.kind = LossScale::Kind::automatic}},
                                  .weight_decay = 1e-4,
                                  .average = {.copied_updates = -1}},  // -1 means the number of steps in the warm-up
                         .schedule = {.kind = Schedule::Kind::cosine}};
  RunOptions run{.epochs = 6, .keep = 1};

  // Training.
  /// Number of samples in one update, over all ranks. If neither batch_size nor batch_per_rank is given, default_batch
  /// is used.
  std::optional<std::int64_t> batch_size{};
  std::optional<std::int64_t> batch_per_rank{};  ///< number of samples of a rank in one micro-batch
  std::int64_t default_batch = 128;
  std::string lr = "auto";
  std::int64_t warmup_steps = -1;         ///< length of the warm-up in steps; -1: a twentieth of the run
  std::optional<double> warmup_epochs{};  ///< length of the warm-up in epochs, instead of warmup_steps
  std::vector<double> milestones{};   ///< epochs when schedule `step` lowers the rate; empty: 1/2 and 3/4 of the run
  std::vector<std::string> freeze{};  ///< names of layers for Model::freezing()
  int workers = -1;                   ///< threads per rank that read samples; -1: the rule of nn/run/run_rules.hpp

  // Ranks.
  int threads = 0;  ///< threads of a rank that compute on the host; 0: RankContext decides
  comm::RankContextOptions::Overlap overlap = comm::RankContextOptions::Overlap::automatic;
  /// Size of gradient buckets in MB (2^20 bytes). If empty, the file `cost` decides the sizes. If both are empty, the
  /// buckets are large, and only the last bucket is small.
  std::string bucket_mb;
  std::string cost;  ///< path of the file cost.json that lockstep-cost writes; empty: none
  std::string reduce_dtype = "fp32";
  std::string compress = "none";  ///< a name that compression_named() takes
  std::string strategy = "ddp";   ///< a name that strategy_named() takes
  /// "run": repeating a run gives equal bits. "layout": gradients are added in rank order. "world": any number of ranks
  /// computes the same numbers as `virtual_ranks` ranks.
  std::string reproducible = "run";
  bool dependent_launches = false;  ///< value of comm::RankContextOptions::dependent_launches
  Tune tune = Tune::automatic;
  std::string choices;               ///< file that keeps timed library choices; empty: none
  bool verify_choices = false;       ///< true: PlanOptions::verifier checks the library choices
  std::int64_t workspace_mb = 1024;  ///< memory limit of one library call in MB while choices are timed
  double watchdog = 600;             ///< seconds without progress after which the job ends; 0: no watchdog
  /// Longest time in seconds to react to a stop; a longer step causes a warning. If not given, RunOptions::stop_within
  /// is used, and there is no warning.
  std::optional<double> stop_within;
  std::optional<double> stall_report;  ///< seconds for Watchdog::report_after(); not given: a quarter of `watchdog`

  // Results.
  std::string out = "out";
  bool tensorboard = false;       ///< true: the run also writes OUT/tensorboard
  int restarts = 0;               ///< number of times that the job may be started again; copy_every needs at least 1
  std::int64_t report_waits = 0;  ///< number of first steps whose waits --report-waits counts separately; 0: no report
  std::string trace;              ///< file for the timeline of --trace; empty: no timeline
  std::string trace_steps;        ///< steps to record, "A:B" (nn/run/observers/run_trace.hpp); empty: default steps
  std::string init;
  std::string resume;
  bool overwrite = false;  ///< true: checkpoints of an earlier run in `out` are deleted
  std::string evaluate;
  bool dry_run = false;
  bool fused_norms = false;  ///< value of PlanOptions::norms_in_convolutions if describe_gpu is set
  std::string describe_gpu;  ///< name of a GPU for which dry_run predicts the time (nn/plan/gpu_prediction.hpp)
};

/// The meaning of a name that --strategy takes: ddp, zero1, single (ddp on one rank), or a name that another tool has
/// for one of these strategies.
struct NamedStrategy {
  Strategy strategy = Strategy::ddp;
  bool one_rank = false;  ///< true: the job must have one rank
  std::string note{};     ///< line that explains another tool's name; empty for ddp, zero1 and single
};
/// Returns the strategy that `name` means. Throws UsageError for unknown names.
[[nodiscard]] NamedStrategy strategy_named(const std::string& name);

/// Returns how gradients are added for --compress `name` (comm::sums_named()). Throws UsageError for unknown names.
[[nodiscard]] comm::SumOptions compression_named(const std::string& name);

/// Adds the groups Training, Ranks and Results to `schema`. The values in `options` become the defaults.
void describe(Schema& schema, TrainingOptions& options);

/// Checks all options that can be checked without data and ranks. UsageError names the option and what was expected.
void require_training_options(const TrainingOptions& options);

/// Returns the value of --lr, or no value if it is "auto".
[[nodiscard]] std::optional<double> given_learning_rate(const TrainingOptions& options);

/// The base of --lr auto: the rate is `base` for a batch of `reference` samples, or for any batch if `reference` is 0.
struct BaseRate {
  double base = 0.1;
  std::int64_t reference = 256;
};

/// Returns the part of `options` that decides threads and communicator of a rank (comm/launch/rank_context.hpp).
[[nodiscard]] comm::RankContextOptions rank_context_options(const TrainingOptions& options, bool bind_near_gpu);

/// The options after resolve() has replaced the values that depend on data and ranks.
struct ResolvedTraining {
  TrainerOptions trainer;  ///< options; TrainerMaker adds the buckets that --cost plans
  RunRules rules;
  std::int64_t total_steps = 0;
  std::vector<std::string> warnings;
};
/// Resolves `options` for a training set of `training_samples` samples. UsageError names the option.
[[nodiscard]] ResolvedTraining resolve(const TrainingOptions& options, std::int64_t training_samples,
                                       const BaseRate& rate, int ranks, int rank, const comm::CpuShare& share);

}  // namespace lockstep::nn

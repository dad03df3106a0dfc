#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// One checkpoint: a folder of the files of nn/model/checkpoint_files.hpp. `dir` is its path; between the two renames
/// of a writer the folder has another name, which every function here finds (find_folder()).
namespace lockstep::nn {

/// Identity of a run: equal identities give equal bits. Every checkpoint keeps it; a resume reports differences.
struct RunIdentity {
  std::string model;
  std::uint64_t seed = 0;
  /// Number of ranks; with virtual ranks (TrainStepOptions::virtual_ranks) their number, because ranks then do not
  /// decide bits.
  int ranks = 1;
  int threads = 1;  ///< threads per rank
  std::int64_t global_batch = 0;
  std::map<std::string, std::string> options;  ///< all other options that change numbers, as text
  std::map<std::string, std::string> layers;   ///< Model::layer_texts(); empty: not known (older checkpoints)
  Choices choices;                             ///< library choices of the plans
  /// Ends of the gradient buckets, in parameters; empty with virtual ranks, where buckets do not decide bits.
  std::vector<std::int64_t> buckets;
};

/// Where a run stands: which batch comes next.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    ///< number within the epoch, after `skipped`
  std::int64_t step = 0;     ///< steps since the beginning of the run
  std::int64_t skipped = 0;  ///< samples of the epoch that were trained on before with another batch size
};

/// Values of your own metrics, by name.
using MetricValues = std::map<std::string, double>;

/// Where a run stands and what it has reached.
struct RunProgress {
  Position position{};
  std::optional<double> test_loss{};      ///< loss of the last evaluation; none: there was no evaluation yet
  std::optional<double> test_accuracy{};  ///< accuracy of the last evaluation; none for regressions
  MetricValues metrics{};                 ///< your own metrics at the last evaluation
  std::string best_by{};         ///< metric by which `best` is best: "test_accuracy", "test_loss" or another metric
  std::optional<double> best{};  ///< best value so far; none: no evaluation was finite
  std::int64_t since_best = 0;   ///< evaluations after the one of `best`
  std::vector<double> samples_seen{};  ///< samples seen so far, per rank
};

/// Returns the text of an option; empty if the run does not have the option.
[[nodiscard]] std::string option_of(const RunIdentity& run, const std::string& name);

/// Returns whether the library choices of a run are valid for another run of the same model: its calls have the same
/// types and, as far as batch size, ranks and micro-batches decide, the same shapes, on the same kind of device (of the
/// same name, if the options hold it as "device").
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

/// Lists the items of two identities that differ, one a line. `names`: readable names for this run's values of options
/// that are numbers (data sets).
[[nodiscard]] std::string differences(const RunIdentity& saved, const RunIdentity& now,
                                      const std::map<std::string, std::string>& names);

/// Writes a checkpoint atomically: at any moment DIR is either the old checkpoint or the new one. The files hold no
/// times or host names: equal runs write equal bytes. All files but state.json are those of save_state()
/// (nn/step/state_file.hpp); state.json holds identity and progress. `keep` earlier checkpoints stay as DIR.1, DIR.2,
/// ... Collective; rank 0 writes; every rank gets the same error (WriteError).
void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep);

/// Contents of state.json, from which a program rebuilds the model. Reading throws DataError naming the file.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// Returns the text of state.json; empty if there is no such file.
[[nodiscard]] std::string checkpoint_text(const std::string& dir);

/// Returns whether there is a state.json at exactly this path: a checkpoint of a run.
[[nodiscard]] bool is_checkpoint(const std::string& dir);
/// Returns the folder that a checkpoint is in now. DataError if there is none.
[[nodiscard]] std::string existing_checkpoint(const std::string& dir);
/// Returns the folder of the checkpoint to which a path belongs: the path itself, unless it is a file; for a model file
/// beside a state.json its folder; empty for another file.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// Returns the step of a checkpoint whose files are unchanged since they were written. DataError if a file is missing
/// or damaged.
[[nodiscard]] std::int64_t valid_step(const std::string& dir);
/// Returns valid_step(); none if a file is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_if_valid(const std::string& dir);

}  // namespace lockstep::nn

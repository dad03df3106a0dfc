#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// Functions for one checkpoint, a folder with the files of nn/model/checkpoint_files.hpp. `dir` is its path. Between a
/// writer's two renames the folder has another name, and every function here finds it (find_folder()).
namespace lockstep::nn {

/// Identity of a run: equal identities give equal bits. Every checkpoint holds it, and a resume reports differences.
struct RunIdentity {
  std::string model;
  std::uint64_t seed = 0;
  /// Number of ranks, or of virtual ranks (TrainStepOptions::virtual_ranks) if there are any, because these decide
  /// bits.
  int ranks = 1;
  int threads = 1;  ///< number of threads per rank
  std::int64_t global_batch = 0;
  std::map<std::string, std::string> options;  ///< texts, by name, of all other options that change numbers
  std::map<std::string, std::string> layers;   ///< Model::layer_texts(); empty: unknown (older checkpoints)
  Choices choices;                             ///< library choices of the plans
  /// Ends of the gradient buckets, counted in parameters. Empty with virtual ranks, where buckets do not decide bits.
  std::vector<std::int64_t> buckets;
};

/// Position of a run in its data: the batch that comes next.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    ///< number of the batch within the epoch, counted after `skipped`
  std::int64_t step = 0;     ///< number of steps since the beginning of the run
  std::int64_t skipped = 0;  ///< samples of this epoch that were trained on with another batch size
};

/// Values of a program's own metrics, by name.
using MetricValues = std::map<std::string, double>;

/// Position of a run and the results that it has reached.
struct RunProgress {
  Position position{};
  std::optional<double> test_loss{};      ///< loss of the last evaluation; none before the first
  std::optional<double> test_accuracy{};  ///< accuracy of the last evaluation; none for regressions
  MetricValues metrics{};                 ///< values of your own metrics at the last evaluation
  std::string best_by{};                  ///< metric that decides `best`: "test_accuracy", "test_loss" or another one
  std::optional<double> best{};           ///< best value so far; none: no evaluation was finite
  std::int64_t since_best = 0;            ///< number of evaluations since `best`
  std::vector<double> samples_seen{};     ///< number of samples seen so far, for each rank
};

/// Returns the text of an option, or an empty text if the run lacks the option.
[[nodiscard]] std::string option_of(const RunIdentity& run, const std::string& name);

/// Returns whether the library choices of a run are valid for another run of the same model. They are valid if the
/// calls have the same types, the same shapes as far as batch size, ranks and micro-batches decide, and the same kind
/// of device (of the same name, if the options hold it as "device").
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

/// Lists the items that differ between two identities, one per line. `names` gives readable names for this run's values
/// of options that are numbers (data sets).
[[nodiscard]] std::string differences(const RunIdentity& saved, const RunIdentity& now,
                                      const std::map<std::string, std::string>& names);

/// Writes a checkpoint atomically: at any moment DIR holds either the old checkpoint or the new one. Equal runs write
/// equal bytes, because the files hold no times and no host names. state.json holds identity and progress; all other
/// files are those of save_state() (nn/step/state_file.hpp). `keep` earlier checkpoints stay as DIR.1, DIR.2, ...
/// Collective: rank 0 writes, and every rank gets the same error (WriteError).
void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep);

/// Contents of state.json, from which a program rebuilds the model. Reading throws DataError that names the file.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// Returns the text of state.json, or an empty text if there is no such file.
[[nodiscard]] std::string checkpoint_text(const std::string& dir);

/// Returns whether this exact path holds a state.json, as a run's checkpoint does.
[[nodiscard]] bool is_checkpoint(const std::string& dir);
/// Returns the folder in which a checkpoint is at present. DataError if there is none.
[[nodiscard]] std::string existing_checkpoint(const std::string& dir);
/// Returns the checkpoint folder of a path. A folder's path is returned as it is. For a model file next to a state.json
/// the result is the folder of both; for any other file it is empty.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// Returns the step of a checkpoint whose files have not changed since they were written. DataError if a file is
/// missing or damaged.
[[nodiscard]] std::int64_t valid_step(const std::string& dir);
/// Returns valid_step(), or no value if a file is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_if_valid(const std::string& dir);

}  // namespace lockstep::nn

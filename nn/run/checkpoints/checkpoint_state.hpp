#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// Functions for one checkpoint, which is a folder `dir` with the files of nn/model/checkpoint_files.hpp. While a
/// writer replaces the folder, the folder has another name for a moment. All functions here also find the folder under
/// that name (find_folder()).
namespace lockstep::nn {

/// Identity of a run: runs of equal identity compute equal bits. Every checkpoint holds the run's identity. A resumed
/// run reports the differences from its own identity.
struct RunIdentity {
  std::string model;
  std::uint64_t seed = 0;
  /// Number of ranks. For a run with virtual ranks (TrainStepOptions::virtual_ranks), the number of virtual ranks,
  /// because results then depend on this number and not on the number of ranks.
  int ranks = 1;
  int threads = 1;  ///< number of threads per rank
  std::int64_t global_batch = 0;
  std::map<std::string, std::string> options;  ///< texts of all other options that affect results, by option name
  /// Texts of Model::layer_texts(); empty: unknown, because an older version wrote the checkpoint.
  std::map<std::string, std::string> layers;
  Choices choices;  ///< library choices of the plans
  /// For each gradient bucket, the number of parameters up to and including the bucket. Empty with virtual ranks,
  /// because results then do not depend on the buckets.
  std::vector<std::int64_t> buckets;
};

/// Position of a run in its data, that is, the next batch to train on.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  ///< number of batches done in this epoch, not counting the samples in `skipped`
  std::int64_t step = 0;   ///< number of steps since the beginning of the run
  /// Number of samples of this epoch on which the run trained with another batch size, before it was resumed.
  std::int64_t skipped = 0;
};

/// Values of the program's own metrics (RunMetric), by name.
using MetricValues = std::map<std::string, double>;

/// Position of a run, and its results so far.
struct RunProgress {
  Position position{};
  std::optional<double> test_loss{};      ///< loss of the last evaluation; empty before the first evaluation
  std::optional<double> test_accuracy{};  ///< accuracy of the last evaluation; empty for regressions
  MetricValues metrics{};                 ///< values of the program's own metrics at the last evaluation
  std::string best_by{};                  ///< name of the metric of `best`: "test_accuracy", "test_loss", ...
  std::optional<double> best{};           ///< best value so far; empty if no evaluation had a finite value
  std::int64_t since_best = 0;            ///< number of evaluations since the best one
  std::vector<double> samples_seen{};     ///< number of samples trained on so far, for each rank
};

/// Returns the text of an option, or an empty text if the run lacks the option.
[[nodiscard]] std::string option_of(const RunIdentity& run, const std::string& name);

/// Returns true if the library choices of run `saved` are valid for run `now` of the same model. For this, the two runs
/// must have equal data types, equal ranks, global batch and micro-batches, and the same kind of device. If both runs
/// store the name of the device in option "device", the names must also be equal.
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

/// Lists the items that differ between two identities, one per line. Some options are stored only as a number, for
/// example data sets. `names` has for such an option a readable text of this run's value.
[[nodiscard]] std::string differences(const RunIdentity& saved, const RunIdentity& now,
                                      const std::map<std::string, std::string>& names);

/// Writes a checkpoint atomically: at any moment DIR holds either the old checkpoint or the new one. Equal runs write
/// equal bytes, because the files hold no times and no host names. state.json holds identity and progress. save_state()
/// (nn/step/state_file.hpp) writes all other files. The last `keep` earlier checkpoints stay as DIR.1, DIR.2, ...
/// Collective: rank 0 writes, and every rank gets the same error (WriteError).
void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep);

/// Contents of state.json. Reading throws DataError, which names the file.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// Returns the text of state.json, or an empty text if the checkpoint has no such file.
[[nodiscard]] std::string checkpoint_text(const std::string& dir);

/// Returns true if a folder with exactly this path holds a state.json.
[[nodiscard]] bool is_checkpoint(const std::string& dir);
/// Returns the path at which the checkpoint `dir` is now (find_folder()). Throws DataError if there is no checkpoint.
[[nodiscard]] std::string existing_checkpoint(const std::string& dir);
/// Returns the checkpoint folder of a path. The path of a folder is returned unchanged. For the path of a model file
/// next to a state.json, returns the folder of this file. For any other file, returns an empty text.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// Checks that the files of a checkpoint have not changed since they were written, and returns the checkpoint's step.
/// Throws DataError if a file is missing or damaged.
[[nodiscard]] std::int64_t valid_step(const std::string& dir);
/// Returns valid_step(), or no value if a file is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_if_valid(const std::string& dir);

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// Functions for one checkpoint: a folder with the files of nn/model/checkpoint_files.hpp, whose path is `dir`. Between
/// a writer's two renames the folder has another name, and every function here finds it (find_folder()).
namespace lockstep::nn {

/// Identity of a run: runs of equal identity compute equal bits. Every checkpoint holds the run's identity, and a
/// resume reports differences.
struct RunIdentity {
  std::string model;
  std::uint64_t seed = 0;
  /// Number of ranks, or of virtual ranks (TrainStepOptions::virtual_ranks) if there are any, because the number of
  /// virtual ranks then decides bits.
  int ranks = 1;
  int threads = 1;  ///< number of threads per rank
  std::int64_t global_batch = 0;
  std::map<std::string, std::string> options;  ///< all other options that affect results: text of each option, by name
  std::map<std::string, std::string> layers;   ///< Model::layer_texts(); empty: unknown (older checkpoints)
  Choices choices;                             ///< library choices of the plans
  /// For each gradient bucket, the number of parameters up to its end. Empty with virtual ranks, where buckets do not
  /// decide bits.
  std::vector<std::int64_t> buckets;
};

/// Position of a run in its data: the batch that comes next.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    ///< number of batches done in this epoch, without the samples in `skipped`
  std::int64_t step = 0;     ///< number of steps since the beginning of the run
  std::int64_t skipped = 0;  ///< number of samples of this epoch that were trained on with another batch size
};

/// Values of a program's own metrics, by name.
using MetricValues = std::map<std::string, double>;

/// Position of a run and the results that it has reached.
struct RunProgress {
  Position position{};
  std::optional<double> test_loss{};      ///< loss of the last evaluation; none before the first evaluation
  std::optional<double> test_accuracy{};  ///< accuracy of the last evaluation; regressions have none
  MetricValues metrics{};                 ///< values of your own metrics at the last evaluation
  std::string best_by{};                  ///< metric that decides `best`: "test_accuracy", "test_loss" or another one
  std::optional<double> best{};           ///< best value so far; none: no evaluation was finite
  std::int64_t since_best = 0;            ///< number of evaluations since the best one
  std::vector<double> samples_seen{};     ///< number of samples seen so far, for each rank
};

/// Returns the text of an option, or an empty text if the run lacks the option.
[[nodiscard]] std::string option_of(const RunIdentity& run, const std::string& name);

/// Returns whether the library choices of run `saved` are valid for run `now` of the same model. They are valid if both
/// runs have equal types, equal sizes that decide shapes (batch size, ranks, micro-batches), and the same kind of
/// device (also of the same name, if the options hold the name as "device").
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

/// Lists the items that differ between two identities, one per line. `names` gives, by option, a readable name for this
/// run's value where the value is only a number (data sets).
[[nodiscard]] std::string differences(const RunIdentity& saved, const RunIdentity& now,
                                      const std::map<std::string, std::string>& names);

/// Writes a checkpoint atomically: at any moment DIR holds either the old checkpoint or the new one. Equal runs write
/// equal bytes, because the files hold no times and no host names. state.json holds identity and progress; all other
/// files are those of save_state() (nn/step/state_file.hpp). `keep` earlier checkpoints stay as DIR.1, DIR.2, ...
/// Collective: rank 0 writes, and every rank gets the same error (WriteError).
void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep);

/// Contents of state.json, from which a program rebuilds the model. Reading throws DataError with the file's name.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// Returns the text of state.json, or an empty text if the checkpoint has no such file.
[[nodiscard]] std::string checkpoint_text(const std::string& dir);

/// Returns whether the folder of exactly this path holds a state.json, as a run's checkpoint does.
[[nodiscard]] bool is_checkpoint(const std::string& dir);
/// Returns the path at which the checkpoint `dir` is at present (find_folder()). Throws DataError if no checkpoint is
/// there.
[[nodiscard]] std::string existing_checkpoint(const std::string& dir);
/// Returns the checkpoint folder of a path. A folder's path is returned as it is. For the path of a model file next to
/// a state.json, returns the folder of both; for any other file an empty text.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// Returns the step of a checkpoint, after a check that its files have not changed since they were written. Throws
/// DataError if a file is missing or damaged.
[[nodiscard]] std::int64_t valid_step(const std::string& dir);
/// Returns valid_step(), or no value if a file is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_if_valid(const std::string& dir);

}  // namespace lockstep::nn

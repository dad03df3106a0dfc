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

/// What makes two runs the same run: equal identities give equal bits. Kept in every checkpoint; differences are
/// reported on resume.
struct RunIdentity {
  std::string model;
  std::uint64_t seed = 0;
  int ranks = 1;    ///< with virtual ranks (TrainStepOptions::virtual_ranks) their number: ranks do not decide bits
  int threads = 1;  ///< per rank
  std::int64_t global_batch = 0;
  std::map<std::string, std::string> options;  ///< everything else that changes numbers, as text
  std::map<std::string, std::string> layers;   ///< Model::layer_texts(); empty: not known (older checkpoints)
  Choices choices;                             ///< library plans
  /// Ends of the gradient buckets, in parameters; empty with virtual ranks, where they do not decide bits.
  std::vector<std::int64_t> buckets;
};

/// Where a run stands: the batch that comes next.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    ///< within the epoch, behind `skipped`
  std::int64_t step = 0;     ///< since the beginning of the run
  std::int64_t skipped = 0;  ///< samples of the epoch that were trained on before with batches of another size
};

/// Metrics of one's own by name.
using MetricValues = std::map<std::string, double>;

/// Where a run stands and what it has reached.
struct RunProgress {
  Position position{};
  std::optional<double> test_loss{};      ///< of the last evaluation; none: there was none yet
  std::optional<double> test_accuracy{};  ///< likewise; none for regressions
  MetricValues metrics{};                 ///< likewise
  std::string best_by{};                  ///< what `best` is the best of: "test_accuracy", "test_loss" or a metric
  std::optional<double> best{};           ///< none: no evaluation was finite
  std::int64_t since_best = 0;            ///< evaluations after that of `best`
  std::vector<double> samples_seen{};     ///< per rank
};

/// The text of an option; empty where the run has none.
[[nodiscard]] std::string option_of(const RunIdentity& run, const std::string& name);

/// Whether the library choices of a run hold for another one of the same model: its calls have the same types and, as
/// far as batch size, ranks and micro-batches decide, the same shapes, on the same kind of device (of the same name,
/// where the options have it as "device").
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

/// The items of two identities that differ, one a line. `names`: what people call this run's value of an option that is
/// a number (data sets).
[[nodiscard]] std::string differences(const RunIdentity& saved, const RunIdentity& now,
                                      const std::map<std::string, std::string>& names);

/// Writes a checkpoint atomically: at any moment DIR is either the old one or the new one. No times or host names
/// inside: equal runs write equal bytes. All files but state.json are those of save_state() (nn/step/state_file.hpp);
/// state.json holds identity and progress. `keep` earlier checkpoints stay as DIR.1, DIR.2, ... Collective; rank 0
/// writes; every rank gets the same error (WriteError).
void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep);

/// Reads state.json alone: what a program needs to rebuild the model. DataError naming the file.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// The text of state.json; empty where there is none.
[[nodiscard]] std::string checkpoint_text(const std::string& dir);

/// Whether there is a state.json at this very path: a checkpoint of a run.
[[nodiscard]] bool is_checkpoint(const std::string& dir);
/// The folder that a checkpoint is in now. DataError where there is none.
[[nodiscard]] std::string existing_checkpoint(const std::string& dir);
/// The folder of the checkpoint that a path is of: the path, unless it is a file; of a model file beside a state.json
/// its folder; empty for another file.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// The step of a checkpoint whose files are those that were written. DataError where one is missing or damaged.
[[nodiscard]] std::int64_t valid_step(const std::string& dir);
/// The same; none where a file is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_if_valid(const std::string& dir);

}  // namespace lockstep::nn

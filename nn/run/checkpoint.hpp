#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/state_file.hpp>

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

/// The identity of a trainer's run: all that it knows. Programs add what else decides their numbers.
[[nodiscard]] RunIdentity identity_of(const Trainer& trainer);

/// Whether the library choices of a run hold for another one of the same model: its calls have the same types and, as
/// far as batch size, ranks and micro-batches decide, the same shapes, on the same kind of device (of the same name,
/// where the options have it as "device").
[[nodiscard]] bool choices_hold(const RunIdentity& saved, const RunIdentity& now);

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

/// Writes DIR/{model.safetensors, optimizer.safetensors, state.json, checksums.json} atomically: at any moment DIR is
/// either the old checkpoint or the new one. No times or host names inside: equal runs write equal bytes. All but
/// state.json are those of save_state() (nn/step/state_file.hpp), with the running statistics averaged over the ranks,
/// each rank counting by the samples that it has seen; state.json holds identity and progress. `keep` earlier
/// checkpoints stay as DIR.1, DIR.2, ... Collective; rank 0 writes; every rank gets the same error (WriteError).
void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep = 0);

/// Reads state.json alone: what a program needs to rebuild the model. DataError naming the file.
struct CheckpointState {
  RunIdentity identity;
  RunProgress progress;
};
[[nodiscard]] CheckpointState read_checkpoint_state(const std::string& dir);
/// The folder of the checkpoint that a path is of: the path, unless it is a file; of a model.safetensors or
/// ema.safetensors beside a state.json its folder; empty for another file.
[[nodiscard]] std::string checkpoint_folder(const std::string& path);

/// Everything, so that the run continues bit for bit: local files read by every rank. Returns the differences between
/// the checkpoint's identity and `identity`, one a line, empty when the continuation is exact: with virtual ranks on
/// any number of ranks; DataError for another number of virtual ranks. Without them, with another number of ranks,
/// every rank continues from the averaged statistics; with another global batch, behind the samples that were trained
/// on (Trainer::continued()).
[[nodiscard]] std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                            const RunIdentity& identity, RunProgress& progress);

/// resume_checkpoint() from DIR where rank 0 finds a checkpoint there, else nothing; where the run stands. Collective,
/// with the same error on every rank when ranks read different states. Differences are printed by nobody: they are in
/// `differences`.
[[nodiscard]] RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                          const RunIdentity& identity, std::string* differences = nullptr);

}  // namespace lockstep::nn

#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

/// Contents of a saved-state folder in addition to the tensors.
struct StateExtras {
  Metadata metadata{};                         ///< metadata entries for model.safetensors
  std::map<std::string, std::string> files{};  ///< texts of additional files; the key is the file name
  int keep = 0;                                ///< number of earlier folders that are kept as FOLDER.1, FOLDER.2, ...
};

/// Writes the files of nn/model/checkpoint_files.hpp, except state.json, to FOLDER. The write is atomic: at any moment
/// FOLDER holds either the old state or the new one. model.safetensors is the file of save_model().
/// optimizer.safetensors holds all other states of ParameterSet::states(), for example optimizer states, a dynamic loss
/// scale, each rank's running statistics, and gradients that compression has not sent yet. With a moving average
/// (TrainStepOptions::average), ema.safetensors holds the averaged weights and statistics under the model's names.
/// Equal states give equal bytes.
///
/// Collective over `control`, a communicator for host tensors with all ranks that train together. Without `control`,
/// this rank trains alone. Rank 0 writes. Throws on every rank: WriteError, or UsageError if the ranks have registered
/// different states. Rank 0 collects in host memory the states that are divided over the ranks (Strategy::zero1), and
/// the gradients that ranks have not sent. The files are the same for ddp and zero1.
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras = {});
/// Saves a step with its numbers of updates and micro-batches, which become metadata entries "lockstep.steps" and
/// "lockstep.microbatches". First averages the running statistics over the ranks, with equal weights. Throws UsageError
/// if `control` and the step have different numbers of ranks.
void save_state(const std::string& folder, TrainStep& step, const Metadata& metadata = {});
void save_state(const std::string& folder, TrainStep& step, comm::Communicator& control, const Metadata& metadata = {});

/// Results of load_state() in addition to the tensors.
struct LoadedState {
  Metadata metadata;  ///< metadata that was passed to save_state()
  /// Number of ranks that wrote the folder. For a run with virtual ranks, the number of virtual ranks
  /// (TrainStepOptions::virtual_ranks).
  int ranks = 1;
};

/// Reads a folder of save_state(), so that training continues bit for bit. Local: every rank reads the files itself,
/// and uses `control` only for its rank and the number of ranks. `ranks` is the number of ranks that wrote the folder,
/// if the caller knows it; 0 allows any number.
///
/// If another number of ranks (or of virtual ranks) wrote the folder, each rank begins with the averaged statistics,
/// and with an equal part of the sum of all gradients that were not sent yet. For all other states, see Sharing.
/// Gradients that were not sent yet are zero if the file has none. Factors of gradient compression are not read if
/// another compression wrote them. If the folder has no ema.safetensors, a moving average begins with the weights.
///
/// States in the file that this optimizer does not have are ignored. A loss scale in the file is ignored unless this
/// optimizer's scale is dynamic. If the file has no loss scale, a dynamic loss scale does not change.
///
/// All tensors are checked before anything changes. Throws DataError as load_model() does, and in these cases:
/// - a state or counter of the optimizer is missing or has another shape;
/// - a mean of squares (exp_avg_sq) is negative or NaN;
/// - the checksum of a file differs from checksums.json (a folder without checksums.json is read unchecked).
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters);
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters,
                       comm::Communicator& control, int ranks = 0);
/// Throws the errors of load_state() but changes nothing. If loading must succeed on all ranks or on none, all ranks
/// can call this function first and exchange the results.
void require_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step, comm::Communicator& control);

/// Averages the running statistics of all ranks, in rank order, and writes the averages to the evaluation buffers. The
/// ranks' own statistics do not change. Also averages the statistics of a moving average, and writes them to
/// MovingAverage::buffers. `weights` has one weight per rank or virtual rank, and must be equal on all ranks. Throws
/// UsageError unless the sum of the weights is above 0. Collective.
void average_statistics(Context& context, ParameterSet& parameters, comm::Communicator& control,
                        const std::vector<double>& weights);

}  // namespace lockstep::nn

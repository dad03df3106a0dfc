#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

/// Contents of a folder of saved state other than the tensors.
struct StateExtras {
  Metadata metadata{};                         ///< metadata entries in the header of model.safetensors
  std::map<std::string, std::string> files{};  ///< texts of additional files, by file name
  int keep = 0;                                ///< number of earlier folders that are kept as FOLDER.1, FOLDER.2, ...
};

/// Writes the files of nn/model/checkpoint_files.hpp, except state.json, to FOLDER. The write is atomic: at any moment
/// FOLDER holds either the old state or the new one. model.safetensors is the file of save_model().
/// optimizer.safetensors holds all other states of ParameterSet::states(): the optimizer's states and counters, a
/// dynamic loss scale, each rank's statistics, the states of a gradient sum (with a compression, the factors and the
/// gradients that each rank has not sent yet), and the program's own states. With a moving average
/// (TrainStepOptions::average) ema.safetensors holds averaged weights and statistics under the model's names. Equal
/// states give equal bytes.
///
/// `control` is a communicator for host tensors of the ranks that train together; without `control`, this rank trains
/// alone. Collective: rank 0 writes, and every rank gets the same error (WriteError; UsageError if the ranks have
/// registered different states). In host memory, rank 0 collects the states that are divided over the ranks
/// (Strategy::zero1) and the gradients that ranks have not sent. The files are the same with and without division.
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras = {});
/// Saves a step with its numbers of updates and micro-batches (metadata names that begin with "lockstep."). First
/// averages the running statistics over the ranks, with equal weights. UsageError if `control` and the step have
/// different numbers of ranks.
void save_state(const std::string& folder, TrainStep& step, const Metadata& metadata = {});
void save_state(const std::string& folder, TrainStep& step, comm::Communicator& control, const Metadata& metadata = {});

/// Contents that load_state() found in a folder in addition to the tensors.
struct LoadedState {
  Metadata metadata;  ///< metadata that save_state() was given
  /// Number of ranks that wrote the folder, or number of virtual ranks if they had some
  /// (TrainStepOptions::virtual_ranks).
  int ranks = 1;
};

/// Reads a folder of save_state(), so that training continues bit for bit. Local: every rank reads the files by itself,
/// and `control` only tells the rank its number and how many ranks there are. `ranks` is the number of ranks that wrote
/// the folder, if the caller knows it; 0 allows any number. If another number of ranks wrote the folder (or, with
/// virtual ranks, if it was written with another number of virtual ranks), each rank continues from the averaged
/// statistics. Each rank then also gets an equal part of the sum of the gradients that were not sent yet (Sharing says
/// what becomes of other states). If the file has no such gradients, they are zero. Factors of another compression are
/// not read. Without ema.safetensors a moving average begins with the weights.
///
/// Ignores states in the file that this optimizer lacks, and a loss scale if this optimizer's scale is not dynamic. A
/// dynamic loss scale that the file lacks does not change. DataError as in load_model(), and also for a state or
/// counter of the optimizer that is missing or has another shape, for a mean of squares (exp_avg_sq) that is negative
/// or NaN, and for a file whose checksum differs from checksums.json (a folder without checksums.json is read
/// unchecked). All tensors are checked before anything changes.
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters);
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters,
                       comm::Communicator& control, int ranks = 0);
/// Throws the DataErrors of load_state() but loads nothing. For ranks that must continue either all or not at all.
void require_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step, comm::Communicator& control);

/// Averages the running statistics of all ranks, in rank order, into the evaluation buffers. The ranks' own statistics
/// do not change. Also averages the statistics of a moving average, into MovingAverage::buffers. `weights` has one
/// weight per rank or virtual rank, and must be equal on all ranks. UsageError unless its sum is above 0. Collective.
void average_statistics(Context& context, ParameterSet& parameters, comm::Communicator& control,
                        const std::vector<double>& weights);

}  // namespace lockstep::nn

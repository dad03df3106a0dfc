#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

/// What a folder of saved state holds besides the tensors.
struct StateExtras {
  Metadata metadata{};                         ///< entries of the header of model.safetensors
  std::map<std::string, std::string> files{};  ///< additional files: text by file name
  int keep = 0;                                ///< number of earlier folders that stay as FOLDER.1, FOLDER.2, ...
};

/// Writes the files of nn/model/checkpoint_files.hpp but state.json to FOLDER, atomically: at any moment FOLDER is
/// either the old state or the new one. model.safetensors is the file of save_model(). optimizer.safetensors holds all
/// other states of ParameterSet::states(): the optimizer's states and counters, a dynamic loss scale, each rank's own
/// statistics, the states of a gradient sum (with a compression, gradients that each rank has not sent yet and the
/// factors), and the program's own states. Equal states give equal bytes. With a moving average
/// (TrainStepOptions::average) ema.safetensors holds the averaged weights and the average of their statistics, by the
/// names of the model's file.
///
/// control: a communicator for host tensors of the ranks that train together. Collective; rank 0 writes; every rank
/// gets the same error (WriteError; UsageError if ranks have registered other states). Without control: for a rank that
/// trains alone. If ranks have divided the states (Strategy::zero1), rank 0 collects them in host memory, and the files
/// are the same. Rank 0 also collects the gradients that ranks have not sent.
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras = {});
/// Saves a step with its numbers of updates and micro-batches (metadata names that begin with "lockstep."). First
/// averages the running statistics over the ranks, with equal weights. UsageError when control has another number of
/// ranks than the step.
void save_state(const std::string& folder, TrainStep& step, const Metadata& metadata = {});
void save_state(const std::string& folder, TrainStep& step, comm::Communicator& control, const Metadata& metadata = {});

/// What load_state() found in a folder besides the tensors.
struct LoadedState {
  Metadata metadata;  ///< metadata as given to save_state()
  /// Number of ranks that wrote the folder; with virtual ranks (TrainStepOptions::virtual_ranks) the number of these.
  int ranks = 1;
};

/// Reads a folder of save_state(), so that training continues bit for bit. Local: every rank reads its own files;
/// `control` only says which of how many ranks this one is. If another number of ranks wrote the folder, each rank
/// continues from the averaged statistics; with virtual ranks their number counts. ranks: the number of ranks that
/// wrote the folder, if the caller knows it; 0: any number. Gradients that the writing ranks had not sent yet are then
/// divided: each rank gets an equal part of their sum (Sharing says what becomes of other states). A file without them
/// gives zeros, and factors of another compression are left out. In a folder without ema.safetensors a moving average
/// begins with the weights.
///
/// Ignores states in the file that this optimizer lacks, and a loss scale when this one is not dynamic. A dynamic loss
/// scale that the file lacks does not change. DataError as in load_model(), also for a state or counter of the
/// optimizer that is missing or has another shape, for a mean of squares (exp_avg_sq) that is negative or NaN, and for
/// a file whose checksum is not the one in checksums.json (a folder without checksums.json is read as it is). All
/// tensors are checked before anything changes.
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters);
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters,
                       comm::Communicator& control, int ranks = 0);
/// Throws the DataErrors of load_state() and loads nothing: for ranks that continue only if each of them can.
void require_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step, comm::Communicator& control);

/// Averages the ranks' running statistics in rank order into the evaluation buffers; the ranks' own statistics do not
/// change. Averages the statistics of a moving average likewise, into MovingAverage::buffers. weights: one per rank or
/// virtual rank, equal on all ranks; their sum is not 0. Collective.
void average_statistics(Context& context, ParameterSet& parameters, comm::Communicator& control,
                        const std::vector<double>& weights);

}  // namespace lockstep::nn

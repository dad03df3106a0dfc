#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

/// The name of the optimizer's file in a folder of saved state.
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

/// What a folder of saved state holds beside the tensors.
struct StateExtras {
  Metadata metadata{};                         ///< in the header of model.safetensors
  std::map<std::string, std::string> files{};  ///< texts of further files by name
  int keep = 0;                                ///< earlier folders that stay as FOLDER.1, FOLDER.2, ...
};

/// Writes FOLDER/{model.safetensors, optimizer.safetensors, checksums.json} atomically: at any moment FOLDER is either
/// the old state or the new one. model.safetensors is what save_model() writes; optimizer.safetensors holds the
/// optimizer's states and counters, a dynamic loss scale, and each rank's own statistics. Equal states write equal
/// bytes.
///
/// control: a communicator for host tensors of the ranks that train together. Collective; rank 0 writes; every rank
/// gets the same error (WriteError). Without one: of a rank that trains alone.
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});
void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras = {});
/// Of a step, with the numbers of its updates and micro-batches (in the metadata, names that begin with "lockstep.").
/// The running statistics are averaged over the ranks first, each rank counting the same. UsageError when control has
/// another number of ranks than the step.
void save_state(const std::string& folder, TrainStep& step, const Metadata& metadata = {});
void save_state(const std::string& folder, TrainStep& step, comm::Communicator& control, const Metadata& metadata = {});

/// What a folder of saved state says beside the tensors.
struct LoadedState {
  Metadata metadata;  ///< that was given to save_state()
  int ranks = 1;      ///< that wrote it
};

/// Reads such a folder, so that training goes on bit for bit. Local: every rank reads files of its own; `control` only
/// says which of how many ranks this one is. On another number of ranks than wrote it each rank goes on from the
/// averaged statistics. ranks: that wrote it, where the caller knows; 0: any number.
///
/// States in the file that this optimizer does not have are not read; neither is a loss scale where none is dynamic
/// here, and a dynamic one that the file lacks stays as it is. DataError as load_model() throws it, also for a state or
/// counter of the optimizer that is missing or has another shape, and for a file that is not the one that
/// checksums.json tells of (a folder without checksums.json is read as it is). Nothing is changed before all tensors
/// fit.
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters);
LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters,
                       comm::Communicator& control, int ranks = 0);
/// DataError as load_state() throws it, with nothing read: for ranks that go on together only where each of them can.
void require_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step);
LoadedState load_state(const std::string& folder, TrainStep& step, comm::Communicator& control);

/// Each rank's own running statistics, one rank's elements behind the other's, on rank 0; nothing on the others.
/// Collective.
[[nodiscard]] std::vector<double> gather_statistics(Context& context, const ParameterSet& parameters,
                                                    comm::Communicator& control);
/// Averages the ranks' running statistics in rank order into the evaluation buffers; the ranks' own stay as they are.
/// weights: one for each rank, equal on all ranks; their sum is not 0. Collective.
void average_statistics(Context& context, ParameterSet& parameters, comm::Communicator& control,
                        const std::vector<double>& weights);

}  // namespace lockstep::nn

#pragma once

#include <string>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/state_file.hpp>

/// Functions that save and resume the checkpoints of a Trainer.
namespace lockstep::nn {

/// Returns the part of a run's identity that the trainer knows. The program adds its other options that affect results.
[[nodiscard]] RunIdentity identity_of(const Trainer& trainer);

/// Writes the trainer's state by write_checkpoint(). First averages the running statistics over the ranks, weighted by
/// the samples that each rank has seen. Collective: rank 0 writes, and every rank gets the same error (WriteError).
void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep = 0);

/// Reads a checkpoint, so that the run continues bit for bit. Every rank reads the files by itself. Returns the
/// differences between the checkpoint's identity and `identity`, one per line; an empty text means an exact
/// continuation. With virtual ranks a run continues exactly on any number of ranks; another number of virtual ranks is
/// a DataError. Without virtual ranks, every rank continues from the averaged statistics if the number of ranks
/// differs. With another global batch the run continues after the samples that were trained on (Trainer::continued()).
[[nodiscard]] std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                            const RunIdentity& identity, RunProgress& progress);

/// Calls resume_checkpoint() if rank 0 finds a checkpoint in `dir`; otherwise resumes nothing. Returns the run's
/// progress. Collective; every rank throws the same error if the ranks read different states. Prints nothing, but
/// writes the result of resume_checkpoint() to `differences`.
[[nodiscard]] RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                          const RunIdentity& identity, std::string* differences = nullptr);

}  // namespace lockstep::nn

#pragma once

#include <string>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/state_file.hpp>

/// Functions that save and resume the checkpoints of a Trainer.
namespace lockstep::nn {

/// Returns all of a run's identity that the trainer knows. Programs add the other options that decide their numbers.
[[nodiscard]] RunIdentity identity_of(const Trainer& trainer);

/// Writes the trainer's state by write_checkpoint(). Running statistics are averaged over the ranks, each rank weighted
/// by the samples that it has seen. Collective; rank 0 writes; every rank gets the same error (WriteError).
void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep = 0);

/// Reads a checkpoint, so that the run continues bit for bit; every rank reads the files itself. Returns the
/// differences between the checkpoint's identity and `identity`, one a line, empty when the continuation is exact. With
/// virtual ranks it is exact on any number of ranks; DataError for another number of virtual ranks. Without them, every
/// rank continues from the averaged statistics if the number of ranks differs. With another global batch the run
/// continues after the samples that were trained on (Trainer::continued()).
[[nodiscard]] std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                            const RunIdentity& identity, RunProgress& progress);

/// Calls resume_checkpoint() if rank 0 finds a checkpoint in DIR, else does nothing. Returns where the run stands.
/// Collective, with the same error on every rank when ranks read different states. Prints nothing: the differences are
/// in `differences`.
[[nodiscard]] RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                          const RunIdentity& identity, std::string* differences = nullptr);

}  // namespace lockstep::nn

#pragma once

#include <string>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/state_file.hpp>

/// Functions that save and resume the checkpoints of a Trainer.
namespace lockstep::nn {

/// Returns the entries of a run's identity that the trainer can fill in. The program must add its own options that
/// affect results.
[[nodiscard]] RunIdentity identity_of(const Trainer& trainer);

/// Writes the trainer's state with write_checkpoint(). Before this, averages the running statistics of batch norm over
/// the ranks, weighted by the number of samples that each rank has trained on. Collective: rank 0 writes, and every
/// rank gets the same error (WriteError).
void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep = 0);

/// Reads a checkpoint, so that the run continues with the same bits as an uninterrupted run. Every rank reads the files
/// itself. Returns the differences between the checkpoint's identity and `identity`, one per line. If the returned text
/// is empty, the run continues exactly.
///
/// With virtual ranks, the run continues exactly on any number of ranks. Without virtual ranks, the number of ranks may
/// differ from that of the checkpoint; every rank then begins with the averaged running statistics. With another global
/// batch, the run continues after the samples that it has already trained on (Trainer::continued()). Throws DataError
/// if the checkpoint has another number of virtual ranks or another optimizer.
[[nodiscard]] std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                            const RunIdentity& identity, RunProgress& progress);

/// Calls resume_checkpoint() if rank 0 finds a checkpoint in `dir`; otherwise does nothing. Returns the run's progress,
/// which is empty without a checkpoint. Prints nothing, but writes the result of resume_checkpoint() to `differences`.
/// Collective: every rank throws the same error if the ranks have read different states.
[[nodiscard]] RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                                          const RunIdentity& identity, std::string* differences = nullptr);

}  // namespace lockstep::nn

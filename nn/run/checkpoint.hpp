#pragma once

#include <string>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/state_file.hpp>

/// The checkpoints of a Trainer.
namespace lockstep::nn {

/// The identity of a trainer's run: all that it knows. Programs add what else decides their numbers.
[[nodiscard]] RunIdentity identity_of(const Trainer& trainer);

/// write_checkpoint() of a trainer's state, with the running statistics averaged over the ranks, each rank counting by
/// the samples that it has seen. Collective; rank 0 writes; every rank gets the same error (WriteError).
void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep = 0);

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

#include "app/cli/training_main.hpp"

#include <memory>

#include <lockstep/app/memory_checkpoints.hpp>
#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::cli {

namespace {

/// Returns a text that changes when the newest checkpoint in a folder changes.
std::string newest_state(const std::string& out) {
  return nn::checkpoint_text(nn::CheckpointStore(out).newest());
}

}  // namespace

void keep_for_restarts(comm::RestartPolicy& policy, const nn::TrainingOptions& options) {
  const auto copies = std::make_shared<std::string>();
  policy.progress = [out = options.out, copies] {
    return newest_state(out) + (copies->empty() ? "" : newest_state(*copies));
  };
  policy.hold = [wanted = options.run.copy_every > 0, copies](const std::string& job) -> std::shared_ptr<void> {
    nn::remove_abandoned_copies();
    if (!wanted) {
      return nullptr;
    }
    try {
      auto folder = std::make_shared<nn::CopiesFolder>(job, nn::CopiesFolder::Use::job);
      *copies = folder->path();
      return folder;
    } catch (const FileError&) {  // the ranks report the error
      return nullptr;
    }
  };
}

}  // namespace lockstep::cli

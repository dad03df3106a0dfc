#include "app/cli/training_main.hpp"

#include <memory>

#include <lockstep/app/found_checkpoints.hpp>
#include <lockstep/app/memory_copies.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::cli {

namespace {

/// A text that changes with the newest checkpoint in a folder.
std::string newest_state(const std::string& out) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  try {
    return read_file(find_folder(nn::newest_checkpoint(out)) + "/state.json", kMostBytes);
  } catch (const Error&) {
    return "";
  }
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
    } catch (const FileError&) {  // the ranks say so
      return nullptr;
    }
  };
}

}  // namespace lockstep::cli

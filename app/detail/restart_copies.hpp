#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/memory_checkpoints.hpp>

namespace lockstep::nn::detail {

/// Implements --copy-every for a job that may be started again: finds the MemoryCheckpoints of earlier starts, makes
/// new ones and deletes them. Without --copy-every the functions do nothing. All functions but add_to() are collective.
class RestartCopies {
 public:
  explicit RestartCopies(RunSite& site) : site_(site), o_(site.options) {}
  /// Returns the path of the newest copy of the training state in memory if this copy is newer than the checkpoints in
  /// the folder of results, otherwise an empty text. If the folder of results was moved, its checkpoints are not found.
  /// Then the path of the newest copy is returned.
  [[nodiscard]] std::string find();
  /// Allows copies of the training state in memory from now on, if the job may be started again. Call begin() after the
  /// state was loaded from `source`.
  void begin(const std::string& source, Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  void add_to(RunOptions& options, Trainer& trainer, const RunIdentity& identity);
  void finish();  ///< deletes the copies in memory; call finish() after a run without an error

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<MemoryCheckpoints> copies_;
};

}  // namespace lockstep::nn::detail

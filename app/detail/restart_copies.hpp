#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/memory_checkpoints.hpp>

namespace lockstep::nn::detail {

/// Implements --copy-every with the MemoryCheckpoints of a job that may be started again, from the search for copies of
/// earlier starts to their deletion. Without --copy-every the calls do nothing. All but add_to() are collective.
class RestartCopies {
 public:
  explicit RestartCopies(RunSite& site) : site_(site), o_(site.options) {}
  /// Returns the newest copy if it is newer than the checkpoints in the folder of results, otherwise an empty text. If
  /// somebody has moved that folder, the next start finds only the copies.
  [[nodiscard]] std::string find();
  /// Call it after the state was loaded from `source`. Copies are made from now on, if a later start could need one.
  void begin(const std::string& source, Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  void add_to(RunOptions& options, Trainer& trainer, const RunIdentity& identity);
  void finish();  ///< call after the run has ended without an error

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<MemoryCheckpoints> copies_;
};

}  // namespace lockstep::nn::detail

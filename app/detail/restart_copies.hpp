#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/memory_checkpoints.hpp>

namespace lockstep::nn::detail {

/// --copy-every: the MemoryCheckpoints of a job that may be started again, from the search for those of its earlier
/// starts to their end. Without it every call does nothing. Collective, all calls but add_to().
class RestartCopies {
 public:
  explicit RestartCopies(RunSite& site) : site_(site), o_(site.options) {}
  /// The newest copy, where it is newer than the checkpoints in the folder of results; else empty. A folder that
  /// somebody has moved is not there any more for the next start; the copies are.
  [[nodiscard]] std::string find();
  /// Once the state is there, which was taken from `source`: from here on copies are made, unless no start follows that
  /// could need one.
  void begin(const std::string& source, Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  void add_to(RunOptions& options, Trainer& trainer, const RunIdentity& identity);
  void finish();  ///< the run has ended in order

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<MemoryCheckpoints> copies_;
};

}  // namespace lockstep::nn::detail

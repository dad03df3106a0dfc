#pragma once

#include <optional>
#include <ostream>
#include <string>

#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/metrics_log.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// The files of a run, on rank 0: the folder of results, which it locks, with config.json and metrics.jsonl; and the
/// console. On other ranks every call does nothing.
class RunFiles final : public RunObserver {
 public:
  /// Locks a folder that a run has written to before, so that files read there do not change. Does nothing for other
  /// folders. UsageError naming --out when another run holds the lock.
  void lock_if_used(const std::string& folder);
  /// UsageError when the folder has checkpoints: a run that does not continue from them would overwrite them.
  static void require_no_checkpoints(const std::string& folder);
  /// Deletes checkpoints and metrics of an earlier run, once the folder is locked.
  void remove_results(const std::string& folder);
  /// Makes and locks the folder, writes config.json anew, and continues the existing metrics (append) or starts them
  /// anew. DataError naming the file that cannot be written.
  void open(const std::string& folder, const Json& config, bool append, std::ostream& out,
            const Console::Options& console);

  void on_run_begin(const RunBegin& event) override;
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_run_end(const RunResult& result) override;
  void write_event(const std::string& name, Json::Object fields);
  void on_end(int exit_code, const RunResult& result);

 private:
  void lock(const std::string& folder);
  std::optional<FolderLock> lock_;
  std::optional<MetricsLog> log_;
  std::optional<Console> console_;
};

}  // namespace lockstep::nn

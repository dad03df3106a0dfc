#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/observers/metrics_log.hpp>
#include <lockstep/nn/run/observers/tensorboard_log.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// The files of a run (the folder of results, which this object locks, with config.json and metrics.jsonl) and the
/// console. Only rank 0 opens files and console; on other ranks the functions do nothing.
class RunFolder final : public RunObserver {
 public:
  /// Locks `folder` if a run has written to it before, so that files read from it do not change. Otherwise does
  /// nothing. Throws a UsageError that names --out if another run holds the lock.
  void lock_if_used(const std::string& folder);
  /// If this process holds the lock, writes its process number into the lock file, for error texts of other processes.
  void name_holder();
  /// Sets how long the functions that lock a folder wait if a job that is ending still holds the lock.
  void wait_for_lock(std::chrono::seconds longest) { longest_wait_ = longest; }
  /// Returns the job that config.json in `folder` names, or an empty text if there is none.
  [[nodiscard]] static std::string job_of(const std::string& folder);
  /// Returns true if the last run in `folder` was to continue from a checkpoint other than last/ (the newest
  /// checkpoint), but failed before it wrote its first checkpoint (resumes()). Then last/ is still the checkpoint from
  /// before that run.
  [[nodiscard]] static bool rolls_back(const std::string& folder);
  /// Throws UsageError if `folder` has checkpoints. Call it for a run that would overwrite checkpoints of another run.
  static void require_no_checkpoints(const std::string& folder);
  /// Locks `folder` if a run has written to it, then deletes the checkpoints, metrics and evaluation of that run.
  void remove_results(const std::string& folder);
  ~RunFolder() override;
  /// Makes and locks `folder`, removes unfinished files that killed processes of lockstep left, and writes a new
  /// config.json. With `append` continues the metrics of an earlier run, otherwise begins new metrics. DataError names
  /// the file that failed.
  void open(const std::string& folder, const Json& config, bool append, std::ostream& out,
            const Console::Options& console);
  /// Says how a run continues.
  struct Resumed {
    Json::Object event{};       ///< fields of the event `resume` in the metrics
    bool from_another = false;  ///< true: the run continues from a checkpoint in the folder other than last/, the
                                ///< newest one
    std::string best_from{};    ///< checkpoint to copy to best/; empty: best/ does not change
  };
  /// Sets how the run continues; call resumes() before open(). Without from_another, open() writes the event and best/.
  /// With from_another, the run writes both after its first checkpoint. Until then, config.json stores which last/
  /// checkpoint the run found. So a run that fails before its first checkpoint has changed no results.
  void resumes(Resumed resumed) { resumed_ = std::move(resumed); }
  /// Makes open() also begin to log scalars for TensorBoard in tensorboard/. The run has done `step` steps before.
  void also_tensorboard(std::int64_t step) { tensorboard_from_ = step; }
  /// Returns the present path of the folder. If somebody has moved the folder during the run, prints a line; the files
  /// stay in the moved folder. If somebody has deleted the folder, makes it again, and prints what is lost.
  [[nodiscard]] std::string folder();
  /// Returns folder(), and a path for writing checkpoints. This path stays valid if the folder is moved.
  [[nodiscard]] RunOptions::Place place();
  /// Makes on_report() print one warning if steps take longer than `seconds`. A step has `samples` samples.
  void warn_of_steps(double seconds, std::int64_t samples);

  /// Prints a line for the user, through the console if the console is open.
  void note(const std::string& line);

  void on_run_begin(const RunBegin& event) override { tell(&RunObserver::on_run_begin, event); }
  void on_non_finite(const NonFiniteEvent& event) override;
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override { tell(&RunObserver::on_epoch_end, event); }
  void on_checkpoint_end(const CheckpointEvent& event) override;
  void on_run_end(const RunResult& event) override { tell(&RunObserver::on_run_end, event); }
  void write_event(const std::string& name, Json::Object fields);
  [[nodiscard]] bool writes() const { return console_.has_value(); }  ///< true on rank 0, after open()
  /// Replaces evaluation.json by a file with `evaluation`, atomically. Throws WriteError if the file cannot be written.
  void write_evaluation(const Json& evaluation);
  void on_end(int exit_code, const RunResult& result);

 private:
  /// Passes an event to the console and the logs, if they are open.
  template <class Event>
  void tell(void (RunObserver::*call)(const Event&), const Event& event) {
    if (console_) {
      (*console_.*call)(event);
      (*log_.*call)(event);
    }
    if (console_ && tensorboard_) {
      (*tensorboard_.*call)(event);
    }
  }
  void lock(const std::string& folder);
  void make(const std::string& folder, bool append);
  void write_config();
  void write_resumed();
  std::string folder_;
  std::chrono::seconds longest_wait_{0};
  int descriptor_ = -1;  ///< descriptor of the folder, valid wherever the folder is moved
  Json config_;
  std::optional<Resumed> resumed_;  ///< argument of resumes(); no value after the event and best/ were written
  std::string found_last_;          ///< result of last_of() for the folder when it was opened
  std::string samples_;
  double longest_step_s_ = 0;  ///< limit of warn_of_steps() in seconds; 0: no limit
  std::int64_t step_samples_ = 0;
  std::optional<FolderLock> lock_;
  std::optional<MetricsLog> log_;
  std::optional<std::int64_t> tensorboard_from_;
  std::optional<TensorBoardLog> tensorboard_;
  std::optional<Console> console_;
};

}  // namespace lockstep::nn

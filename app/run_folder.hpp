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

/// The files of a run on rank 0, and the console. The files are the folder of results, which this object locks, with
/// config.json and metrics.jsonl. On other ranks the calls do nothing.
class RunFolder final : public RunObserver {
 public:
  /// Locks a folder that a run has written to before, so that files read there do not change. Does nothing for other
  /// folders. UsageError that names --out if another run holds the lock.
  void lock_if_used(const std::string& folder);
  /// Tells other processes from now on that this process holds the lock, if it does.
  void name_holder();
  /// Sets for how long the locks below wait for a job that is still ending.
  void wait_for_lock(std::chrono::seconds longest) { longest_wait_ = longest; }
  /// Returns "job" of the folder's config.json, or an empty text if there is none.
  [[nodiscard]] static std::string job_of(const std::string& folder);
  /// Returns whether the folder's last run was to continue from a checkpoint other than last/ and had not begun
  /// (resumes()). In that case last/ is still the one that the run found.
  [[nodiscard]] static bool rolls_back(const std::string& folder);
  /// Throws UsageError if the folder has checkpoints: a run that does not continue from them would overwrite them.
  static void require_no_checkpoints(const std::string& folder);
  /// Locks the folder, then deletes checkpoints and metrics of an earlier run.
  void remove_results(const std::string& folder);
  ~RunFolder() override;
  /// Makes and locks the folder, removes remains of lockstep's killed writers, writes a new config.json, and continues
  /// the existing metrics (`append`) or begins new ones. DataError names the file that cannot be written.
  void open(const std::string& folder, const Json& config, bool append, std::ostream& out,
            const Console::Options& console);
  /// Says how a run continues.
  struct Resumed {
    Json::Object event{};       ///< fields of the event `resume`
    bool from_another = false;  ///< true: from a checkpoint of the folder, but not last/ (RunOptions::checkpoint_first)
    std::string best_from{};    ///< checkpoint that becomes best/; empty: best/ does not change
  };
  /// Sets how the run continues. Call it before open(), which writes the event and best/. With from_another the run's
  /// first checkpoint comes before both, and config.json names the earlier last/ until then. So a run that fails before
  /// has changed nothing.
  void resumes(Resumed resumed) { resumed_ = std::move(resumed); }
  /// Makes open() also write scalars for TensorBoard, in tensorboard/. `step` is the number of steps done before.
  void also_tensorboard(std::int64_t step) { tensorboard_from_ = step; }
  /// Returns where the folder is now. If somebody has moved the folder during the run, prints a line; the run's files
  /// stay in the moved folder. If somebody has deleted it, makes it again, and prints what is lost.
  [[nodiscard]] std::string folder();
  /// Returns folder() for checkpoints, with a path that stays right while the folder is moved.
  [[nodiscard]] RunOptions::Place place();
  /// Makes on_report() warn once if a step of `samples` samples takes longer than `seconds`.
  void warn_of_steps(double seconds, std::int64_t samples);

  /// Prints a line for the user, by the console if it is open.
  void note(const std::string& line);

  void on_run_begin(const RunBegin& event) override { tell(&RunObserver::on_run_begin, event); }
  void on_non_finite(const NonFiniteEvent& event) override;
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override { tell(&RunObserver::on_epoch_end, event); }
  void on_checkpoint_end(const CheckpointEvent& event) override;
  void on_run_end(const RunResult& event) override { tell(&RunObserver::on_run_end, event); }
  void write_event(const std::string& name, Json::Object fields);
  [[nodiscard]] bool writes() const { return console_.has_value(); }  ///< true on rank 0, after open()
  /// Writes a new evaluation.json, atomically. WriteError if the file cannot be written.
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
  int descriptor_ = -1;  ///< descriptor of the folder, which stays right wherever the folder is moved
  Json config_;
  std::optional<Resumed> resumed_;  ///< given until it is written
  std::string found_last_;          ///< last_of() the folder, for resumed_->from_another
  std::string samples_;
  double longest_step_s_ = 0;  ///< seconds; 0: no limit
  std::int64_t step_samples_ = 0;
  std::optional<FolderLock> lock_;
  std::optional<MetricsLog> log_;
  std::optional<std::int64_t> tensorboard_from_;
  std::optional<TensorBoardLog> tensorboard_;
  std::optional<Console> console_;
};

}  // namespace lockstep::nn

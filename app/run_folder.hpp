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

/// The files of a run, on rank 0: the folder of results, which it locks, with config.json and metrics.jsonl; and the
/// console. On other ranks every call does nothing.
class RunFolder final : public RunObserver {
 public:
  /// Locks a folder that a run has written to before, so that files read there do not change. Does nothing for other
  /// folders. UsageError naming --out when another run holds the lock.
  void lock_if_used(const std::string& folder);
  /// Others are told from now on that this process holds the lock, if it does.
  void name_holder();
  /// The locks below wait so long for a job that is still ending.
  void wait_for_lock(std::chrono::seconds longest) { longest_wait_ = longest; }
  /// "job" of the folder's config.json; empty where there is none.
  [[nodiscard]] static std::string job_of(const std::string& folder);
  /// Whether the last run of the folder was to go on from a checkpoint other than last/, and has not begun to
  /// (resumes()): last/ is the one that it found.
  [[nodiscard]] static bool rolls_back(const std::string& folder);
  /// UsageError when the folder has checkpoints: a run that does not continue from them would overwrite them.
  static void require_no_checkpoints(const std::string& folder);
  /// Deletes checkpoints and metrics of an earlier run, once the folder is locked.
  void remove_results(const std::string& folder);
  ~RunFolder() override;
  /// Makes and locks the folder, removes what killed writers of lockstep left there, writes config.json anew, and
  /// continues the existing metrics (append) or starts them anew. DataError naming the file that cannot be written.
  void open(const std::string& folder, const Json& config, bool append, std::ostream& out,
            const Console::Options& console);
  /// How a run goes on.
  struct Resumed {
    Json::Object event{};       ///< the fields of the event `resume`
    bool from_another = false;  ///< from a checkpoint of the folder other than last/ (RunOptions::checkpoint_first)
    std::string best_from{};    ///< the checkpoint that becomes best/; empty: that stays
  };
  /// Before open(), which writes the event and best/. With from_another these come after the run's first checkpoint,
  /// and until then config.json knows the last/ that was there: a run that fails before has changed nothing.
  void resumes(Resumed resumed) { resumed_ = std::move(resumed); }
  /// Before open(): scalars for TensorBoard too, in tensorboard/. `step`: the steps done before.
  void also_tensorboard(std::int64_t step) { tensorboard_from_ = step; }
  /// Where the folder is now. Somebody may have moved it during the run: then a line says so, and the run's files are
  /// where it is. A folder that was deleted is made anew, and a line says what is lost.
  [[nodiscard]] std::string folder();
  /// The same for checkpoints: by a path that stays right while the folder is moved.
  [[nodiscard]] RunOptions::Place place();
  /// Says once when a step takes longer than `seconds`, by the reports of steps of so many samples.
  void warn_of_steps(double seconds, std::int64_t samples);

  /// A line for the user, beside the console's own.
  void note(const std::string& line);

  void on_run_begin(const RunBegin& event) override { tell(&RunObserver::on_run_begin, event); }
  void on_non_finite(const NonFiniteEvent& event) override;
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override { tell(&RunObserver::on_epoch_end, event); }
  void on_checkpoint_end(const CheckpointEvent& event) override;
  void on_run_end(const RunResult& event) override { tell(&RunObserver::on_run_end, event); }
  void write_event(const std::string& name, Json::Object fields);
  [[nodiscard]] bool writes() const { return console_.has_value(); }  ///< rank 0, after open()
  /// Writes evaluation.json anew, at once or not at all. WriteError when it cannot be written.
  void write_evaluation(const Json& evaluation);
  void on_end(int exit_code, const RunResult& result);

 private:
  /// The console and the logs hear of an event, once they are open.
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
  int descriptor_ = -1;  ///< of the folder: it stays the same wherever the folder goes
  Json config_;
  std::optional<Resumed> resumed_;  ///< as long as it is not written
  std::string found_last_;          ///< of resumed_->from_another: last/ as it was
  std::string samples_;
  double longest_step_s_ = 0;  ///< 0: any
  std::int64_t step_samples_ = 0;
  std::optional<FolderLock> lock_;
  std::optional<MetricsLog> log_;
  std::optional<std::int64_t> tensorboard_from_;
  std::optional<TensorBoardLog> tensorboard_;
  std::optional<Console> console_;
};

}  // namespace lockstep::nn

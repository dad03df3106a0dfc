#pragma once

#include <string>

#include <lockstep/nn/run/observer.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// Writes metrics.jsonl, one JSON object per line, and flushes after each line. Events:
///   "step"   a report: epoch, step, loss, accuracy, learning_rate, samples_per_second, comm_exposed_s (per step)
///   "epoch"  epoch, step, loss, accuracy, test_loss, test_accuracy, samples_per_second, comm_exposed_s, seconds,
///            skipped_updates (since the process began), gradient_bytes (of one rank in a step) and sent_bytes (the
///            bytes that are sent for them), peak_bytes (EpochEvent, of rank 0), and test_top_k_accuracy if
///            PlanOptions::top_k asks for it
///   "end"    exit_code, step, test_loss, test_accuracy, best_by, best
///   "resume" from, epoch, step: the run continues after that step. Earlier lines with later steps belong to the part
///            that was lost; these steps are trained again, and their new lines follow
/// The file also has your own metrics, by name, and the events of write_event(). The word for samples replaces
/// "samples". Accuracies are fractions. Values that were never measured are null.
class MetricsLog final : public RunObserver {
 public:
  /// Makes the folder if it is missing. With `append` continues the existing file of a resumed run, and first removes
  /// an incomplete last line, which a full disk or a kill leaves. DataError if the file cannot be made, or if it is a
  /// link that would be continued. WriteError from each call if the file cannot be written.
  MetricsLog(const std::string& path, bool append, const std::string& samples = "samples");
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_end(int exit_code, const RunResult& result);  ///< call from the program, which knows its exit code
  void write_event(const std::string& name, Json::Object fields);

 private:
  void write(const Json& line);
  std::string samples_per_second_;  ///< "samples_per_second", with the word for samples
  LogFile out_;
};

}  // namespace lockstep::nn

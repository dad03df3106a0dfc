#pragma once

#include <string>

#include <lockstep/nn/run/observer.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// Writes metrics.jsonl, one JSON object per line, and flushes after each line. Events:
///   "step"   a report: epoch, step, loss, accuracy, learning_rate, samples_per_second, comm_exposed_s (per step)
///   "epoch"  epoch, step, loss, accuracy, test_loss, test_accuracy, samples_per_second, comm_exposed_s, seconds,
///            skipped_updates (since the process began), gradient_bytes (bytes of one rank's gradients in a step),
///            sent_bytes (bytes that are sent to sum these gradients), peak_bytes (EpochEvent, of rank 0), and
///            test_top_k_accuracy with PlanOptions::top_k
///   "end"    exit_code, step, test_loss, test_accuracy, best_by, best
///   "resume" from, epoch, step: the run continues after that step. Lines above this event that have later steps are
///            obsolete: the run trains these steps again and writes new lines for them below
/// The file also has the program's own metrics, under their names, and the events of write_event(). The constructor's
/// word `samples` replaces "samples" in names, for example "images_per_second". Accuracies are fractions. Values that
/// were never measured are null.
class MetricsLog final : public RunObserver {
 public:
  /// Makes the folder of the file `path` if the folder is missing. With `append`, continues the existing file of a
  /// resumed run. An incomplete last line, which a full disk or a killed process may leave, is removed first. Throws
  /// DataError if the file cannot be made, or if `append` is true and `path` is a symbolic link. Each later call throws
  /// WriteError if the file cannot be written.
  MetricsLog(const std::string& path, bool append, const std::string& samples = "samples");
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  /// Writes the "end" event. The program itself must call this function, because only the program knows its exit code.
  void on_end(int exit_code, const RunResult& result);
  void write_event(const std::string& name, Json::Object fields);

 private:
  void write(const Json& line);
  std::string samples_per_second_;  ///< key of the speed: word for samples + "_per_second"
  LogFile out_;
};

}  // namespace lockstep::nn

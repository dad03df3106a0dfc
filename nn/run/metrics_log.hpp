#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <lockstep/nn/run/observer.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// metrics.jsonl: one JSON object a line, flushed line by line. Events:
///   "step"   a report: epoch, step, loss, accuracy, learning_rate, samples_per_second, comm_exposed_s (a step)
///   "epoch"  epoch, step, loss, accuracy, test_loss, test_accuracy, samples_per_second, comm_exposed_s, seconds,
///            skipped_updates (since the process began), and test_top_k_accuracy where PlanOptions::top_k asks for it
///   "end"    exit_code, step, test_loss, test_accuracy, best_by, best
///   "resume" from, epoch, step: the run goes on behind that step. Lines of later steps that stand before it are of a
///            run that was lost; what was trained again stands behind it
/// metrics of one's own by their names, and what a program adds with write_event(). "samples" is what they are called.
/// Accuracies are fractions; what was not measured before the end is null.
class MetricsLog final : public RunObserver {
 public:
  /// Makes the folder where it is missing. append: go on behind what is there (a resumed run); a last line without an
  /// end, which a full disk or a kill has cut, is removed. DataError when the file cannot be made, WriteError from
  /// each call when it cannot be written.
  MetricsLog(const std::string& path, bool append, const std::string& samples = "samples");
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_end(int exit_code, const RunResult& result);  ///< for the program, which knows its exit code
  void write_event(const std::string& name, Json::Object fields);

 private:
  void write(const Json& line);
  std::string path_;
  std::string samples_per_second_;  ///< "samples_per_second"
  std::ofstream out_;
};

}  // namespace lockstep::nn

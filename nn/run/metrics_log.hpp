#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// metrics.jsonl: one JSON object a line, flushed line by line. Events:
///   "step"   epoch, step, loss, accuracy, learning_rate, images_per_second, comm_exposed_s (a step)
///   "epoch"  epoch, step, loss, accuracy, test_loss, test_accuracy, images_per_second, comm_exposed_s, seconds
///            skipped_updates (since the process began), and test_top_k_accuracy where PlanOptions::top_k asks for it
///   "end"    exit_code, step, test_accuracy, best_accuracy
/// and what a program adds with write_event().
/// "images" is what samples are called. Accuracies are fractions; those of "end" are null when the run ended before the
/// first evaluation.
class MetricsLog final : public RunObserver {
 public:
  /// append: go on behind what is there (a resumed run). DataError when the file cannot be written.
  MetricsLog(std::string path, bool append, const std::string& samples = "images");
  void on_step(const StepEvent& event) override;
  void on_epoch(const EpochEvent& event) override;
  void on_end(int exit_code, std::int64_t step, const RunResult& result);
  void write_event(const std::string& name, Json::Object fields);

 private:
  void write(const Json& line);
  std::string path_;
  std::string samples_per_second_;  ///< "images_per_second"
  std::ofstream out_;
};

}  // namespace lockstep::nn

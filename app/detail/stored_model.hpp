#pragma once

#include <string>
#include <vector>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/evaluation/class_statistics.hpp>

namespace lockstep::nn::detail {

/// Implements --evaluate: evaluates a stored model on the test set, then the moving average of the model's weights, if
/// the average's file is next to the model's file. Prints the results on rank 0. Collective. Throws the errors of
/// Session::agree().
struct StoredModel {
  const RunSite& site;
  const TrainingInputs& inputs;
  Trainer& trainer;
  ClassStatistics* classes;  ///< statistics of the classes; nullptr if the model is no classifier

  /// Evaluates the model and its moving average, and prints the results. `observer`, if not nullptr, gets the events of
  /// the model's evaluation, but not those of the moving average's evaluation.
  void evaluate(const std::vector<RunMetric>& metrics, RunObserver* observer);

 private:
  /// Returns on all ranks the path of the moving average's file that rank 0 finds in the checkpoint, or an empty text.
  [[nodiscard]] std::string average();
  void evaluate_one(const std::string& path, const char* label, const std::vector<RunMetric>& metrics,
                    RunObserver& observer);
  void print(const char* label, const EvaluationEvent& test) const;
};

}  // namespace lockstep::nn::detail

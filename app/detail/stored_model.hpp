#pragma once

#include <string>
#include <vector>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/evaluation/class_statistics.hpp>

namespace lockstep::nn::detail {

/// --evaluate: what the test set says of a stored model, and of the moving average of its weights where one lies beside
/// it; printed on rank 0. Collective. Errors are those of Session::agree().
struct StoredModel {
  const RunSite& site;
  const TrainingInputs& inputs;
  Trainer& trainer;
  ClassStatistics* classes;  ///< nullptr: the model is no classifier

  /// observer: nullptr, or what follows the model's evaluation, not that of the average.
  void evaluate(const std::vector<RunMetric>& metrics, RunObserver* observer);

 private:
  /// The moving average in the checkpoint, as rank 0 finds it; empty: there is none.
  [[nodiscard]] std::string average();
  void evaluate_one(const std::string& path, const char* label, const std::vector<RunMetric>& metrics,
                    RunObserver& observer);
  void print(const char* label, const EvaluationEvent& test) const;
};

}  // namespace lockstep::nn::detail

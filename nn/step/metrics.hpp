#pragma once

namespace lockstep::nn {

/// Sums over samples. Those of losses and correct predictions are weighted where the batches bring weights
/// (PlanOptions::weights).
struct Metrics {
  double loss_sum = 0;
  double correct = 0;
  double top_k_correct = 0;  ///< of an evaluation with PlanOptions::top_k
  double samples = 0;        ///< that count, whatever their weights
  double weight = 0;         ///< their weights together; without weights equal to samples
  [[nodiscard]] double loss() const { return loss_sum / weight; }
  [[nodiscard]] double accuracy() const { return correct / weight; }
  [[nodiscard]] double top_k_accuracy() const { return top_k_correct / weight; }

  Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    top_k_correct += other.top_k_correct;
    samples += other.samples;
    weight += other.weight;
    return *this;
  }
};

}  // namespace lockstep::nn

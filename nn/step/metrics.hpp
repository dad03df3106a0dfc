#pragma once

namespace lockstep::nn {

/// Sums over samples.
struct Metrics {
  double loss_sum = 0;
  double correct = 0;
  double top_k_correct = 0;  ///< of an evaluation with PlanOptions::top_k
  double samples = 0;
  [[nodiscard]] double loss() const { return loss_sum / samples; }
  [[nodiscard]] double accuracy() const { return correct / samples; }
  [[nodiscard]] double top_k_accuracy() const { return top_k_correct / samples; }

  Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    top_k_correct += other.top_k_correct;
    samples += other.samples;
    return *this;
  }
};

}  // namespace lockstep::nn

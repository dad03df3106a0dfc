#pragma once

#include <cstddef>
#include <limits>
#include <span>

namespace lockstep::nn {

/// Returns sum / weight, or NaN if the weight is 0. Never divides by 0, so no floating-point exception is raised.
[[nodiscard]] inline double mean_of(double sum, double weight) {
  // The condition chooses the divisor, because clang may execute a division before the branch that should skip it.
  return sum / (weight != 0 ? weight : std::numeric_limits<double>::quiet_NaN());
}

/// Sums over samples. If batches contain weights (PlanOptions::weights), losses and correct predictions are weighted.
struct Metrics {
  double loss_sum = 0;
  double correct = 0;
  double top_k_correct = 0;  ///< number of samples whose label is in the top k; 0 without PlanOptions::top_k
  double samples = 0;        ///< number of valid samples, without their weights
  double weight = 0;         ///< sum of the weights of the valid samples; equals `samples` if there are no weights
  [[nodiscard]] double loss() const { return mean_of(loss_sum, weight); }
  [[nodiscard]] double accuracy() const { return mean_of(correct, weight); }
  [[nodiscard]] double top_k_accuracy() const { return mean_of(top_k_correct, weight); }

  Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    top_k_correct += other.top_k_correct;
    samples += other.samples;
    weight += other.weight;
    return *this;
  }
};

/// Returns the sum of `parts`, added in the order in which comm::SumOrder::tree adds gradients: first neighbours in
/// pairs, then pairs of pairs, and so on. The result has the same bits if aligned groups of 2^k neighbours are summed
/// first.
[[nodiscard]] inline Metrics sum_in_tree(std::span<const Metrics> parts) {
  if (parts.size() < 2) {
    return parts.empty() ? Metrics{} : parts.front();
  }
  std::size_t half = 1;  // the largest power of two below the number of parts
  while (2 * half < parts.size()) {
    half *= 2;
  }
  Metrics sum = sum_in_tree(parts.first(half));
  sum += sum_in_tree(parts.subspan(half));
  return sum;
}

}  // namespace lockstep::nn

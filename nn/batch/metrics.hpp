#pragma once

#include <cstddef>
#include <limits>
#include <span>

namespace lockstep::nn {

/// sum / weight; NaN without a weight, by which nothing is divided: no floating-point exception.
[[nodiscard]] inline double mean_of(double sum, double weight) {
  return sum / (weight != 0 ? weight : std::numeric_limits<double>::quiet_NaN());  // clang divides ahead of a branch
}

/// Sums over samples. Losses and correct predictions are weighted when batches bring weights (PlanOptions::weights).
struct Metrics {
  double loss_sum = 0;
  double correct = 0;
  double top_k_correct = 0;  ///< in an evaluation with PlanOptions::top_k
  double samples = 0;        ///< number of samples that count, whatever their weights
  double weight = 0;         ///< sum of their weights; equals samples without weights
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

/// The sum of `parts`: neighbours in pairs, then pairs of pairs, and so on, as comm::SumOrder::tree adds
/// gradients. So equal powers of two of them may be summed apart, and then their sums, without changing a bit.
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

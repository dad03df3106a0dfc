#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/kernels/batch_norm_fused.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// Predicts the time of a plan on a GPU that need not be in this machine. The prediction uses the plan's numbers of
/// bytes, operations and launches, and the GPU's data sheet. Nothing is measured.
namespace lockstep::nn {

/// Values of a GPU's data sheet. Rates of operations are for dense matrices (no sparsity). A multiplication and an
/// addition count as two operations.
struct GpuDescription {
  std::string_view name;   ///< short name, like "h200"
  std::string_view title;  ///< full name, for example "NVIDIA H200 (SXM)"
  double memory_bytes = 0;
  double bytes_per_s = 0;  ///< bandwidth of the GPU's memory
  double flops_16 = 0;     ///< operations per second of bf16 and f16 on tensor cores, summed in f32
  double flops_tf32 = 0;   ///< operations per second of TF32 on tensor cores
  double flops_32 = 0;     ///< operations per second of f32, not on tensor cores
  double flops_64 = 0;     ///< operations per second of f64, on tensor cores if they support f64
  ops::ChipMemory chip{};
};

/// Returns the description of a GPU. Throws UsageError, which lists the known names, for another name.
[[nodiscard]] const GpuDescription& known_gpu(std::string_view name);
[[nodiscard]] std::string known_gpu_names();  ///< names of all described GPUs: "a100, h100, ..."

/// Predicted time in seconds under three assumptions about the shares of the data sheet's bandwidth and arithmetic rate
/// that kernels reach.
struct PredictedTime {
  double limit_s = 0;     ///< seconds if kernels reach the data sheet's values and launches take no time
  double expected_s = 0;  ///< seconds if kernels reach the shares that well-tuned kernels reach
  /// Seconds if kernels are not tuned for the GPU, so that both shares are about an eighth smaller.
  double low_s = 0;

  PredictedTime& operator+=(const PredictedTime& other);
};

struct GpuPredictionOptions {
  bool tf32 = false;        ///< true: the plan has PlanOptions::tf32
  double update_bytes = 0;  ///< bytes that the optimizer reads and writes per step; 0: the step has no update
  /// Number of micro-batches per step. Each is assumed to take as long as one run of the plan.
  int micro_batches = 1;
  double samples = 0;  ///< number of samples per step on this GPU; 0: the plan's batch size times micro_batches
};

/// Predicts the time of each call on one GPU. The calls are those of a training step, or of an evaluation of one batch.
/// The time of a call is the larger of bytes / bandwidth and operations / rate, plus a time for each launch (the
/// roofline model: Williams et al. 2009, doi 10.1145/1498765.1498785). The prediction does not include the copy of the
/// input to the GPU and the sums of gradients over GPUs. It assumes that no data stays in a cache from one call to the
/// next.
class GpuPrediction {
 public:
  /// Predicts the time of `plan` on `gpu`, which must outlive this object.
  GpuPrediction(const Plan& plan, const GpuDescription& gpu, const GpuPredictionOptions& options = {});

  [[nodiscard]] const std::vector<PredictedTime>& calls() const { return calls_; }  ///< time of each call of the plan
  [[nodiscard]] const PredictedTime& update() const { return update_; }             ///< time of the optimizer's update
  [[nodiscard]] PredictedTime step() const;  ///< time of all micro-batches and the update
  /// Formats a table with one line for each kind of op, and lines for the update, the step, and samples per second.
  [[nodiscard]] std::string text(const Plan& plan) const;

 private:
  const GpuDescription* gpu_;
  GpuPredictionOptions options_;
  std::vector<PredictedTime> calls_;
  /// For each call: true if the arithmetic rate decides limit_s, false if the bandwidth decides limit_s.
  std::vector<bool> arithmetic_;
  PredictedTime update_;
};

}  // namespace lockstep::nn

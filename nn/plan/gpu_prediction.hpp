#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/kernels/batch_norm_fused.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// How long a plan would take on a GPU that is not here: from its bytes, operations and launches, which are counted,
/// and from what the GPU can do at most. Nothing of it is measured.
namespace lockstep::nn {

/// A GPU by its data sheet. Operations a second are those of dense factors (no sparsity), a multiplication and an
/// addition being two.
struct GpuDescription {
  std::string_view name;    ///< "h200"
  std::string_view title;   ///< "NVIDIA H200 (SXM)"
  double memory_bytes = 0;  ///< that it has
  double bytes_per_s = 0;   ///< between it and its memory
  double flops_16 = 0;      ///< bf16 and f16 on tensor cores, summed in f32
  double flops_tf32 = 0;    ///< on tensor cores
  double flops_32 = 0;      ///< not on tensor cores
  double flops_64 = 0;      ///< on tensor cores where they have it
  ops::ChipMemory chip{};
};

[[nodiscard]] const GpuDescription& known_gpu(std::string_view name);  ///< UsageError that names those there are
[[nodiscard]] std::string known_gpu_names();                           ///< "a100, h100, ..."

/// Seconds under three assumptions about what kernels reach of the data sheet.
struct PredictedTime {
  double limit_s = 0;     ///< all of it, and launches that take no time
  double expected_s = 0;  ///< what good kernels reach of a copy's bandwidth and of the rate
  double low_s = 0;       ///< about an eighth less: what kernels reach that nobody has tuned on that GPU

  PredictedTime& operator+=(const PredictedTime& other);
};

struct GpuPredictionOptions {
  bool tf32 = false;        ///< PlanOptions::tf32 of the plan
  double update_bytes = 0;  ///< that the optimizer reads and writes in a step; 0: leaves it out
  int micro_batches = 1;    ///< of a step, each taken to cost what the plan costs
  double samples = 0;       ///< of a step on this GPU; 0: as many as the micro-batches can hold
};

/// A training step or an evaluation of a batch on one GPU, call by call. A call takes the larger of bytes / bandwidth
/// and operations / rate, and a time for each launch (the roofline model: Williams et al. 2009, doi
/// 10.1145/1498765.1498785). The caches between two calls, the copy of the input, and sums over GPUs are left out.
class GpuPrediction {
 public:
  /// gpu must outlive the object.
  GpuPrediction(const Plan& plan, const GpuDescription& gpu, const GpuPredictionOptions& options = {});

  [[nodiscard]] const std::vector<PredictedTime>& calls() const { return calls_; }  ///< of the plan, one each
  [[nodiscard]] const PredictedTime& update() const { return update_; }             ///< the optimizer's
  [[nodiscard]] PredictedTime step() const;  ///< all micro-batches and the update
  /// A table: an op in each line, the step, and samples a second.
  [[nodiscard]] std::string text(const Plan& plan) const;

 private:
  const GpuDescription* gpu_;
  GpuPredictionOptions options_;
  std::vector<PredictedTime> calls_;
  std::vector<bool> arithmetic_;  ///< by call: operations, not bytes, decide limit_s
  PredictedTime update_;
};

}  // namespace lockstep::nn

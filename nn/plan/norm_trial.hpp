#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

/// Allocates `count` random bf16 numbers in [0, 1). If a call reads their bytes as another floating type, the numbers
/// are small and finite, too. The memory repeats one block of at most 2 MB of random numbers.
[[nodiscard]] Tensor small_random_numbers(Context& context, std::int64_t count, std::uint64_t seed);

/// Runs a convolution together with the batch norm next to it, so that choose_libraries() can compare their total
/// times. A plan that serves the norm (ConvPlan::serves_norm()) also computes the norm's sums. With a bare plan, which
/// only convolves, the norm computes its sums in a pass of its own. The trial owns the norm's tensors. The caller
/// passes the convolution's tensors to each call.
class NormTrial {
 public:
  struct Operands {
    TensorView a, b, out, workspace;  ///< arguments of conv2d(), without a bias
  };

  /// Requires desc.norm.wanted. Throws OutOfMemory if the device lacks memory for the norm's tensors.
  NormTrial(Context& context, const ops::ConvDesc& desc, ops::ConvPass pass);

  /// Enqueues the convolution and the norm's work, for timing.
  void run(const ops::ConvPlan& plan, const Operands& operands);
  /// Runs a plan, waits, and compares its results with those of the first checked plan. The first checked plan must not
  /// compute the norm's sums (ConvPlan::serves_norm()). In forward, compares the sums; in backward, the sums and the
  /// first 2^20 elements of the masked gradient g. The operands should be positive numbers. Throws UnsupportedError if
  /// the results differ by more than 16-bit rounding explains.
  void check(const ops::ConvPlan& plan, const Operands& operands);
  [[nodiscard]] bool checks() const { return !expected_.empty(); }  ///< true: check() has checked a first plan

 private:
  /// Enqueues the convolution and the norm's work. If `store` is true, the norm always stores the masked gradient g, so
  /// that check() can read it.
  void enqueue(const ops::ConvPlan& plan, const Operands& operands, bool store);
  [[nodiscard]] std::vector<double> results(const TensorView& out, bool serves);

  Context& context_;
  ops::ConvDesc desc_;
  ops::ConvPass pass_;
  std::int64_t channels_;
  /// Vectors of shape (4, C). In forward: shift, weight, bias and an unused row. In backward: coefficients of the norm.
  Tensor vectors_;
  Tensor vectors2_;  ///< backward: shape (4, C), coefficients of the second norm if two norms share the gradient
  Tensor given_;     ///< shape (3, C): the norm's sums, from a convolution whose plan serves the norm
  Tensor sums_, sums2_, stats_, coefficients_, gradients_;
  Tensor addend_, mask_, x_, x2_, norm_workspace_;
  std::vector<double> expected_;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

/// Allocates `count` random numbers in [0, 1) of a 16-bit type. If their bytes are read as another floating type, the
/// numbers are small and finite, too. The memory repeats one block of at most 2 MB of random numbers.
[[nodiscard]] Tensor small_random_numbers(Context& context, std::int64_t count, std::uint64_t seed);

/// Runs a pass of a convolution together with the work of the batch norm next to it, so that choose_libraries() can
/// compare plans. A plan that serves the norm (ConvPlan::serves_norm()) computes the norm's sums, so the norm then has
/// little work. After a bare plan, the norm makes its own pass over the tensor. The trial owns the norm's tensors; each
/// call brings the convolution's tensors.
class NormTrial {
 public:
  struct Operands {
    TensorView a, b, out, workspace;  ///< arguments of conv2d(), without a bias
  };

  /// desc.norm.wanted must be true. Throws OutOfMemory if the device has no room for the norm's tensors.
  NormTrial(Context& context, const ops::ConvDesc& desc, ops::ConvPass pass);

  /// Enqueues the convolution and the norm's work, for timing.
  void run(const ops::ConvPlan& plan, const Operands& operands);
  /// Runs a plan, waits, and compares its results with those of the first checked plan, which must be a bare one. In
  /// forward, compares the statistics; in backward, the sums and the first 2^20 elements of g. The operands should be
  /// positive numbers. Throws UnsupportedError if the results differ by more than the roundings of 16 bits.
  void check(const ops::ConvPlan& plan, const Operands& operands);
  [[nodiscard]] bool checks() const { return !expected_.empty(); }  ///< true: check() has results to compare with

 private:
  /// If `store` is true, a bare backward pass stores g even if a step would not.
  void enqueue(const ops::ConvPlan& plan, const Operands& operands, bool store);
  [[nodiscard]] std::vector<double> results(const TensorView& out, bool serves);

  Context& context_;
  ops::ConvDesc desc_;
  ops::ConvPass pass_;
  std::int64_t channels_;
  Tensor vectors_;   ///< shape (4, C): shift, weight and bias in forward; coefficients of the norm in backward
  Tensor vectors2_;  ///< shape (4, C): coefficients of the second norm of a pair, in backward; empty in forward
  Tensor given_;     ///< shape (3, C): sums that the convolution writes for the norm
  Tensor sums_, sums2_, stats_, coefficients_, gradients_;
  Tensor addend_, mask_, x_, x2_, norm_workspace_;
  std::vector<double> expected_;
};

}  // namespace lockstep::nn

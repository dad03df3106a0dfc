#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

/// Memory of `count` random numbers in [0, 1) of a 16-bit type. Read as another floating type they are small and
/// finite, too. A block of at most 2 MB, repeated.
[[nodiscard]] Tensor small_random_numbers(Context& context, std::int64_t count, std::uint64_t seed);

/// A pass of a convolution beside a batch norm, as choose_libraries() times it: a plan that serves the norm with the
/// little that the norm then does, a bare one with the norm's own pass over the tensor. Owns what the norm has; the
/// convolution's tensors come with each call.
class NormTrial {
 public:
  struct Operands {
    TensorView a, b, out, workspace;  ///< of conv2d()
  };

  /// desc.norm is wanted. OutOfMemory where the device has no room.
  NormTrial(Context& context, const ops::ConvDesc& desc, ops::ConvPass pass);

  /// Enqueues both, to be timed.
  void run(const ops::ConvPlan& plan, const Operands& operands);
  /// Runs a plan and waits. What the first one, a bare one, gives is kept; a plan that gives something else, by more
  /// than the roundings of 16 bits, is refused with an UnsupportedError: an engine may be faster, but not other. It
  /// compares statistics or sums, and the first 2^20 elements of g, for one draw of positive numbers.
  void check(const ops::ConvPlan& plan, const Operands& operands);
  [[nodiscard]] bool checks() const { return !expected_.empty(); }  ///< there is something to compare with

 private:
  /// store: a bare backward pass stores g, also where a step would not.
  void enqueue(const ops::ConvPlan& plan, const Operands& operands, bool store);
  [[nodiscard]] std::vector<double> results(const TensorView& out, bool serves);

  Context& context_;
  ops::ConvDesc desc_;
  ops::ConvPass pass_;
  std::int64_t channels_;
  Tensor vectors_;  ///< (4, C): in forward shift, weight, bias; in backward the coefficients
  Tensor vectors2_;
  Tensor given_;  ///< (3, C)
  Tensor sums_, sums2_, stats_, coefficients_, gradients_;
  Tensor addend_, mask_, x_, x2_, norm_workspace_;
  std::vector<double> expected_;
};

}  // namespace lockstep::nn

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

/// Finds gradients of this rank that have NaN or infinity before the ranks sum them: a flag for each tensor, set on the
/// device while backward computes. The host keeps the flags and the norm of the summed gradients of the last kStepsKept
/// steps. Nothing waits, and nothing is allocated after the constructor; begin() and written() may be captured into a
/// Graph.
class GradientCheck {
 public:
  static constexpr std::int64_t kStepsKept = 8;
  /// norm: f64 scalar on the device, of the summed gradients of a step. host: page-locked memory for a GPU. Parameters,
  /// norm and host must outlive this object.
  GradientCheck(Context& context, const ParameterSet& parameters, const TensorView& norm, MemoryResource& host);

  /// Begins a step: enqueues the clearing of all flags.
  void begin(Context& context);
  /// A write of gradient `parameter` (an index of ParameterSet::trainable()) is enqueued. After its last write of the
  /// step, enqueues the check of this gradient.
  void written(Context& context, int parameter);
  /// Enqueues the copy of the flags and the norm of step `step` to the host, after the step's update.
  void keep(Context& context, std::int64_t step);

  /// Returns whether the norm of a step is finite, the same on every rank. The step must be done, one of the last
  /// kStepsKept.
  [[nodiscard]] bool finite(std::int64_t step) const;
  /// Describes a step whose norm is not finite: "rank 3: conv2.weight and 12 written after it", a part for each rank
  /// that has such gradients, four at most. `control` takes host tensors. Collective; the same on every rank.
  [[nodiscard]] std::string text(std::int64_t step, comm::Communicator& control) const;
  [[nodiscard]] std::size_t bytes() const { return flags_.bytes() + host_.bytes(); }

 private:
  [[nodiscard]] std::byte* kept(std::int64_t step) const;
  [[nodiscard]] TensorView flags() const;
  const ParameterSet& parameters_;
  TensorView norm_;
  Stream inline_stream_;
  Buffer flags_;  ///< a flag per tensor, i32, on the device
  Buffer host_;   ///< for each kept step: the norm, f64, and the flags
  std::size_t stride_;
  std::vector<int> left_;  ///< writes of each gradient that are still to come in this step
};

}  // namespace lockstep::nn

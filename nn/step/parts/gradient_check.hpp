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

/// Which gradients of this rank have NaN or infinity before they are summed over the ranks: a flag for each tensor,
/// found on the device while backward computes. Flags and the norm of the summed gradients of the last kStepsKept steps
/// lie on the host. Nothing waits, and nothing is allocated after the constructor; begin() and written() may be
/// captured into a Graph.
class GradientCheck {
 public:
  static constexpr std::int64_t kStepsKept = 8;
  /// norm: f64 scalar on the device, of the summed gradients of a step. host: page-locked memory for a GPU. All three
  /// must outlive this object.
  GradientCheck(Context& context, const ParameterSet& parameters, const TensorView& norm, MemoryResource& host);

  /// Enqueues: no gradient of this step is written yet.
  void begin(Context& context);
  /// A write of gradient `parameter` (of ParameterSet::trainable()) is enqueued; behind its last write of the step the
  /// look at it is enqueued.
  void written(Context& context, int parameter);
  /// Enqueues what step `step` has found to the host, behind its update.
  void keep(Context& context, std::int64_t step);

  /// Of a step whose work is done, one of the last kStepsKept: whether the norm is finite. The same on every rank.
  [[nodiscard]] bool finite(std::int64_t step) const;
  /// Of a step that is not: "rank 3: conv2.weight and 12 written after it", a part for each rank that has such
  /// gradients, four at most. `control` takes host tensors. Collective; the same on every rank.
  [[nodiscard]] std::string text(std::int64_t step, comm::Communicator& control) const;
  [[nodiscard]] std::size_t bytes() const { return flags_.bytes() + host_.bytes(); }

 private:
  [[nodiscard]] std::byte* kept(std::int64_t step) const;
  [[nodiscard]] TensorView flags() const;
  const ParameterSet& parameters_;
  TensorView norm_;
  Stream inline_stream_;
  Buffer flags_;  ///< i32 (tensors), on the device
  Buffer host_;   ///< for each step that is kept: the norm, f64, and the flags
  std::size_t stride_;
  std::vector<int> left_;  ///< writes of each gradient that are still to come in this step
};

}  // namespace lockstep::nn

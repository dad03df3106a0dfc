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

/// Finds gradients of this rank that contain NaN or infinity, before the ranks sum the gradients. During backward, the
/// device sets a flag for each such gradient tensor. For each of the last kStepsKept steps, the host keeps the flags
/// and the norm of the summed gradients. No function waits, and only the constructor allocates. begin() and written()
/// may be captured into a Graph.
class GradientCheck {
 public:
  static constexpr std::int64_t kStepsKept = 8;
  /// `norm` is an f64 scalar on the device, which holds the norm of a step's summed gradients. `host` is the resource
  /// of host memory for results, page-locked for a GPU. `parameters`, `norm` and `host` must outlive this object.
  GradientCheck(Context& context, const ParameterSet& parameters, const TensorView& norm, MemoryResource& host);

  /// Begins a step. Enqueues a kernel that clears all flags.
  void begin(Context& context);
  /// Must be called each time a call that writes a parameter's gradient has been enqueued. `parameter` is the
  /// parameter's index in ParameterSet::trainable(). After the gradient's last write in the step, enqueues the check
  /// for NaN and infinity.
  void written(Context& context, int parameter);
  /// Enqueues a copy of the flags and of the norm to the host, as the results of step `step`. Must be called after the
  /// step's update.
  void keep(Context& context, std::int64_t step);

  /// Returns true if the norm of the summed gradients of step `step` is finite. The result is the same on every rank.
  /// The step must be complete, and must be one of the last kStepsKept.
  [[nodiscard]] bool finite(std::int64_t step) const;
  /// Describes the gradients of a step whose norm is not finite, for example "rank 3: conv2.weight and 12 written after
  /// it". Names up to four ranks whose gradients contain NaN or infinity. `control` must accept host tensors.
  /// Collective, with the same result on all ranks.
  [[nodiscard]] std::string text(std::int64_t step, comm::Communicator& control) const;
  [[nodiscard]] std::size_t bytes() const { return flags_.bytes() + host_.bytes(); }

 private:
  [[nodiscard]] std::byte* kept(std::int64_t step) const;
  [[nodiscard]] TensorView flags() const;
  const ParameterSet& parameters_;
  TensorView norm_;
  Stream inline_stream_;
  Buffer flags_;  ///< one i32 flag per gradient tensor, on the device
  Buffer host_;   ///< norm (f64) and flags of each kept step
  std::size_t stride_;
  std::vector<int> left_;  ///< for each gradient, the number of writes that this step has not enqueued yet
};

}  // namespace lockstep::nn

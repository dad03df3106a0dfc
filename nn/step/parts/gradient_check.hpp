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

/// Finds gradients of this rank with NaN or infinity before the ranks sum the gradients. While backward computes, the
/// device sets a flag for each gradient tensor with NaN or infinity. The host keeps the flags and the norm of the
/// summed gradients for the last kStepsKept steps. No call waits; only the constructor allocates. A Graph may capture
/// begin() and written().
class GradientCheck {
 public:
  static constexpr std::int64_t kStepsKept = 8;
  /// `norm` is an f64 scalar on the device with the norm of a step's summed gradients. `host` is page-locked memory on
  /// a GPU. Parameters, norm and host must outlive this object.
  GradientCheck(Context& context, const ParameterSet& parameters, const TensorView& norm, MemoryResource& host);

  /// Begins a step. Enqueues a kernel that clears all flags.
  void begin(Context& context);
  /// Call written() each time a write of a parameter's gradient has been enqueued. `parameter` is the parameter's index
  /// in ParameterSet::trainable(). After the gradient's last write in the step, enqueues the check for NaN or infinity.
  void written(Context& context, int parameter);
  /// Enqueues a copy to the host of the flags (one per gradient: NaN or infinity was found) and of the gradients' norm,
  /// as the results of step `step`. Call keep() after the step's update.
  void keep(Context& context, std::int64_t step);

  /// Returns whether the gradients' norm of step `step` is finite; the answer is the same on every rank. The step must
  /// be complete and one of the last kStepsKept.
  [[nodiscard]] bool finite(std::int64_t step) const;
  /// Describes a step whose norm is not finite: "rank 3: conv2.weight and 12 written after it". Names at most four
  /// ranks with NaN or infinity in gradients. `control` takes host tensors. Collective, with the same result on all
  /// ranks.
  [[nodiscard]] std::string text(std::int64_t step, comm::Communicator& control) const;
  [[nodiscard]] std::size_t bytes() const { return flags_.bytes() + host_.bytes(); }

 private:
  [[nodiscard]] std::byte* kept(std::int64_t step) const;
  [[nodiscard]] TensorView flags() const;
  const ParameterSet& parameters_;
  TensorView norm_;
  Stream inline_stream_;
  Buffer flags_;  ///< one i32 flag per gradient tensor, on the device
  Buffer host_;   ///< for each kept step the norm (f64) and the flags
  std::size_t stride_;
  std::vector<int> left_;  ///< number of writes of each gradient that this step will still enqueue
};

}  // namespace lockstep::nn

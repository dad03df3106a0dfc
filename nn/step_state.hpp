#pragma once

#include <cstdint>

#include <lockstep/runtime/buffer.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::nn {

/// What changes from step to step and is read by ops on the device.
enum class StateField : unsigned char {
  learning_rate,  ///< f64 scalar
  loss_scale,     ///< scalar of the compute dtype: 1 / (global number of valid samples)
  valid,          ///< i64 scalar: valid samples of this rank's batch
  epoch,          ///< i64 scalar
  metrics,        ///< f64 (3): sum of losses, correct predictions, labels out of range
  images,         ///< u8 (N, H, W, 3)
  sample_ids,     ///< i64 (N)
  labels,         ///< i32 (N)
  input,          ///< compute dtype, (N, stored input shape): when images are not used
};
inline constexpr int kStateFields = 9;

/// One block of device memory that holds the StateFields of a plan's batch. Owner: the trainer, or whoever runs plans;
/// plans of smaller or equal batch size may share it.
class StepState {
 public:
  /// input_shape: logical (H, W, C) or (features).
  StepState(Context& context, std::int64_t batch, const Shape& input_shape, DType dtype, bool uint8_input);

  [[nodiscard]] const TensorView& view(StateField field) const { return views_[static_cast<int>(field)]; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }

  /// Host values that go with every batch; enqueued on the context's stream.
  struct Scalars {
    double learning_rate = 0;
    double loss_scale = 1;
    std::int64_t valid = 0;
    std::int64_t epoch = 0;
  };
  void set(Context& context, const Scalars& scalars);  ///< also zeroes the metrics

  struct Metrics {
    double loss_sum = 0;
    double correct = 0;
    double bad_labels = 0;
  };
  /// Copies the metrics to the host; waits for the stream.
  [[nodiscard]] Metrics metrics(Context& context) const;

 private:
  std::int64_t batch_;
  DType dtype_;
  Buffer block_;
  TensorView views_[kStateFields];
};

/// (H, W, 3) -> (H, W, 4): how an input sample is stored.
[[nodiscard]] Shape stored_input_shape(const Shape& logical);

}  // namespace lockstep::nn

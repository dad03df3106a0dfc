#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// What changes from step to step and is read by ops on the device.
enum class StateField : unsigned char {
  learning_rate,  ///< f64 scalar
  sample_weight,  ///< scalar, f32 beside 16-bit plans, else of the plan's type: what the loss of a sample is multiplied
                  ///< by
  valid,          ///< i64 scalar: valid samples of this rank's batch
  epoch,          ///< i64 scalar
  weight_sum,     ///< like sample_weight: the samples of this rank's step so far, times sample_weight
  metrics,     ///< f64 (5): sums over samples: losses, correct predictions, labels and tokens out of range, correct in
               ///< top k, and weights of the loss where the plan reads them
  sample_ids,  ///< i64 (N)
  images,      ///< u8 (N, H, W, 3): InputKind::images
  values,      ///< plan's type, (N, stored input shape): InputKind::values
  tokens,      ///< i32 (N, T): InputKind::tokens
  labels,      ///< i32 (N, positions): for a loss over classes
  targets,     ///< plan's type, (N, output shape): for a regression
  weights,     ///< like sample_weight, (N) or (N, positions) or (N, output shape): of the loss, LossWeights
};
inline constexpr int kStateFields = 13;
[[nodiscard]] std::string_view name_of(StateField field);

/// What a model reads (Model::input_kind()): u8 images that are decoded and augmented on the way in, numbers as they
/// are, or token ids.
enum class InputKind : unsigned char { images, values, tokens };
[[nodiscard]] StateField input_field(InputKind kind);

/// Weights of the loss that a batch brings: none, one a sample, or one for each position (a loss over classes) or
/// element (a regression) of the output.
enum class LossWeights : unsigned char { none, sample, element };
[[nodiscard]] std::string_view name_of(LossWeights weights);

/// Shapes of what goes with one sample.
struct StepLayout {
  std::string model;         ///< its name, for errors
  DType dtype = DType::f32;  ///< of the plan
  InputKind input_kind = InputKind::images;
  Shape input;              ///< (H, W, C), (features) or (T) tokens
  Shape output;             ///< ([positions,] K)
  bool regression = false;  ///< a target of the output's shape; else a label for each position
  LossWeights weights = LossWeights::none;
};

/// How a field of a batch is stored. A field that the layout has no use for has no elements.
struct FieldSpec {
  DType dtype;
  Shape shape;
};
[[nodiscard]] FieldSpec field_spec(StateField field, const StepLayout& layout, std::int64_t batch);

/// One block of device memory that holds the StateFields of a plan's batch. Owner: the trainer, or whoever runs plans;
/// plans of smaller or equal batch size may share it.
class StepState {
 public:
  StepState(Context& context, std::int64_t batch, const StepLayout& layout);

  static constexpr int kMetrics = 5;  ///< elements of StateField::metrics, of which the first three are the losses'
  static constexpr int kTopK = 3;     ///< the others' places
  static constexpr int kWeight = 4;
  [[nodiscard]] const TensorView& view(StateField field) const { return views_[static_cast<int>(field)]; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] const StepLayout& layout() const { return layout_; }
  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }

  /// Host values that go with every batch; enqueued on the context's stream.
  struct Scalars {
    double learning_rate;  ///< not read by a plan
    double sample_weight;  ///< 1 / (global number of valid samples) makes the gradient that of their mean
    std::int64_t valid;    ///< samples of this batch that count
    std::int64_t epoch = 0;
    double weight_sum = 0;
  };
  void set(Context& context, const Scalars& scalars);  ///< also zeroes the metrics

  /// Scalars, metrics, sample ids and labels lie in one piece, u8 (bytes), so that one copy sends them.
  [[nodiscard]] TensorView packed() const;
  /// Writes that piece to host memory, at `block`, for a copy to packed(): zero metrics, the ids and labels of some
  /// rows (sample_ids i64 (n), labels i32 (n, positions)), zeros for the rest. Views that are not given write nothing.
  void pack(std::byte* block, const Scalars& scalars, const TensorView& sample_ids, const TensorView& labels) const;

  /// In such a block: sample ids that count from `first`.
  void number_samples(std::byte* block, std::int64_t first) const;

  struct Metrics {
    double loss_sum = 0;
    double correct = 0;
    double bad_labels = 0;
    double top_k_correct = 0;
    double weight = 0;  ///< of a plan that reads weights
  };
  /// Copies the metrics to the host; waits for the stream.
  [[nodiscard]] Metrics metrics(Context& context) const;

 private:
  std::int64_t batch_;
  StepLayout layout_;
  std::size_t packed_bytes_ = 0;
  Buffer block_;
  TensorView views_[kStateFields];
};

/// ([positions,] K) -> (positions) or (): for what there is a label.
[[nodiscard]] Shape positions_of(const Shape& output);

/// (H, W, 3) -> (H, W, 4): how an input sample is stored.
[[nodiscard]] Shape stored_input_shape(const Shape& logical);

}  // namespace lockstep::nn

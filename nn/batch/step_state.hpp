#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Values that change from step to step and that ops read on the device.
enum class StateField : unsigned char {
  learning_rate,  ///< f64 scalar
  /// Scalar, f32 beside 16-bit plans, else of the plan's type: factor of the loss of a sample.
  sample_weight,
  valid,       ///< i64 scalar: valid samples of this rank's batch
  epoch,       ///< i64 scalar
  weight_sum,  ///< like sample_weight: the number of samples of this rank's step so far, times sample_weight
  /// f64 (5), sums over samples: losses; correct predictions; labels and tokens out of range; correct in top k; weights
  /// of the loss, where the plan reads them.
  metrics,
  sample_ids,    ///< i64 (N)
  images,        ///< u8 (N, H, W, 3): InputKind::images
  values,        ///< plan's type, (N, stored input shape): InputKind::values
  tokens,        ///< i32 (N, T): InputKind::tokens
  labels,        ///< i32 (N, positions): for a loss over classes
  targets,       ///< plan's type, (N, output shape): for a regression
  weights,       ///< like sample_weight, (N) or (N, positions) or (N, output shape): weights of the loss, LossWeights
  other_labels,  ///< like labels: of a mixture of two samples (StepLayout::two_labels)
  shares,        ///< like sample_weight, (N): of labels in the mixture
  other_shares,  ///< likewise: of other_labels
  // Of batches that are not finished (nn/data/device_preprocessing.hpp); no plan reads them.
  pictures,      ///< u8 (N, pictures of a sample, bytes)
  picture_work,  ///< f64 (N, pictures of a sample, columns)
};
inline constexpr int kStateFields = 18;
[[nodiscard]] std::string_view name_of(StateField field);

/// What a model reads (Model::input_kind()): u8 images, which are decoded and augmented, numbers as they are, or token
/// ids.
enum class InputKind : unsigned char { images, values, tokens };
[[nodiscard]] StateField input_field(InputKind kind);

/// The weights of the loss that a batch brings: none, one per sample, or one per position (a loss over classes) or
/// element (a regression) of the output.
enum class LossWeights : unsigned char { none, sample, element };
[[nodiscard]] std::string_view name_of(LossWeights weights);

/// The shapes of one sample's fields.
struct StepLayout {
  std::string model;         ///< its name, for errors
  DType dtype = DType::f32;  ///< of the plan
  InputKind input_kind = InputKind::images;
  Shape input;              ///< (H, W, C), (features) or (T) tokens
  Shape output;             ///< ([positions,] K)
  bool regression = false;  ///< a target of the output's shape; else a label for each position
  LossWeights weights = LossWeights::none;
  bool two_labels = false;  ///< training batches bring other_labels, shares and other_shares
};

/// How a field of a batch is stored. A field that the layout does not use has no elements.
struct FieldSpec {
  DType dtype;
  Shape shape;
};
[[nodiscard]] FieldSpec field_spec(StateField field, const StepLayout& layout, std::int64_t batch);

/// One block of device memory with the StateFields of a plan's batch. The trainer owns it, or the code that runs plans;
/// plans of smaller or equal batch size may share it.
class StepState {
 public:
  StepState(Context& context, std::int64_t batch, const StepLayout& layout);

  static constexpr int kMetrics = 5;  ///< elements of StateField::metrics; the loss writes the first three
  static constexpr int kTopK = 3;     ///< indices of the other two
  static constexpr int kWeight = 4;
  [[nodiscard]] const TensorView& view(StateField field) const { return views_[static_cast<int>(field)]; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] const StepLayout& layout() const { return layout_; }
  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }

  /// Host values of a batch; set() enqueues them on the context's stream.
  struct Scalars {
    double learning_rate;  ///< plans do not read it
    double sample_weight;  ///< 1 / (global number of valid samples): the gradient is then that of the mean
    std::int64_t valid;    ///< samples of this batch that count
    std::int64_t epoch = 0;
    double weight_sum = 0;
  };
  void set(Context& context, const Scalars& scalars);  ///< also zeroes the metrics

  /// Scalars, metrics, sample ids and labels are contiguous, u8 (bytes), so that one copy sends them all.
  [[nodiscard]] TensorView packed() const;
  /// Writes that piece to host memory at `block`, for a copy to packed(): zero metrics, the ids and labels of some rows
  /// (sample_ids i64 (n), labels i32 (n, positions)), and zeros for the rest. Views that are not given write nothing.
  void pack(std::byte* block, const Scalars& scalars, const TensorView& sample_ids, const TensorView& labels) const;

  /// Writes sample ids that count from `first` to such a block.
  void number_samples(std::byte* block, std::int64_t first) const;

  struct Metrics {
    double loss_sum = 0;
    double correct = 0;
    double bad_labels = 0;
    double top_k_correct = 0;
    double weight = 0;  ///< for a plan that reads weights
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

/// ([positions,] K) -> (positions) or (): the shape of a sample's labels.
[[nodiscard]] Shape positions_of(const Shape& output);

/// (H, W, 3) -> (H, W, 4): the stored shape of an input sample.
[[nodiscard]] Shape stored_input_shape(const Shape& logical);

}  // namespace lockstep::nn

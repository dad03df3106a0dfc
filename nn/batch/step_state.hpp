#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Names of the device tensors whose contents change from step to step. N is the batch size of the plan.
enum class StateField : unsigned char {
  learning_rate,  ///< f64 scalar, which the optimizer reads
  /// Factor of every sample's loss, a scalar of the accumulation type: f32 in 16-bit plans, otherwise the plan's type.
  sample_weight,
  valid,  ///< i64 scalar: number of valid samples in this rank's batch
  epoch,  ///< i64 scalar: epoch of the batch, a part of the key of all random draws
  /// Scalar of sample_weight's type: sample_weight * (this rank's number of valid samples in the step so far).
  weight_sum,
  /// Five f64 sums over samples, in this order: losses; correct predictions; labels and tokens out of range;
  /// predictions correct in top k; weights of the loss, if the plan reads weights.
  metrics,
  sample_ids,  ///< i64 (N): index of each sample in the data set, a part of the key of all random draws
  images,      ///< u8 (N, H, W, 3): input of InputKind::images
  values,      ///< (N, stored input shape) in the plan's type: input of InputKind::values
  tokens,      ///< i32 (N, T): input of InputKind::tokens
  labels,      ///< i32 (N, positions): the right classes, for a loss over classes
  targets,     ///< (N, output shape) in the plan's type: the right outputs of a regression
  /// (N), (N, positions) or (N, output shape) in sample_weight's type: weights of the loss (LossWeights).
  weights,
  other_labels,  ///< i32 (N, positions): second labels of mixed samples (StepLayout::two_labels)
  shares,        ///< (N) in sample_weight's type: share of `labels` in each mixed sample
  other_shares,  ///< (N) in sample_weight's type: share of `other_labels` in each mixed sample
  // The next two fields are only in batches that a device has yet to preprocess (nn/data/device_preprocessing.hpp). No
  // plan reads these two fields.
  pictures,      ///< u8 (N, images per sample, bytes): pixels or JPEG file of each image
  picture_work,  ///< f64 (N, images per sample, WorkColumns::kColumns): parameters of device preprocessing
};
inline constexpr int kStateFields = 18;
[[nodiscard]] std::string_view name_of(StateField field);

/// Kind of a model's input (Model::input_kind()). `images` are u8; the plan augments and normalises them. `values` are
/// numbers, which the plan takes unchanged. `tokens` are token ids.
enum class InputKind : unsigned char { images, values, tokens };
[[nodiscard]] StateField input_field(InputKind kind);

/// Number of loss weights that a batch contains: none, one per sample, or one per element. For a loss over classes, an
/// element is a position of the output. For a regression, an element is one number of the output.
enum class LossWeights : unsigned char { none, sample, element };
[[nodiscard]] std::string_view name_of(LossWeights weights);

/// Properties of a plan that decide the types and shapes of the fields.
struct StepLayout {
  std::string model;         ///< name of the model, for error texts
  DType dtype = DType::f32;  ///< type of the plan
  InputKind input_kind = InputKind::images;
  Shape input;              ///< shape of a sample's input: (H, W, C), (features), or (T) for T tokens
  Shape output;             ///< shape of a sample's output: (K) or (positions, K), with K classes or numbers
  bool regression = false;  ///< true: the loss needs targets of the output's shape; false: one label for each position
  LossWeights weights = LossWeights::none;
  bool two_labels = false;  ///< true: training batches contain other_labels, shares and other_shares
};

/// Type and stored shape of a field of a batch. A field that the layout does not use has no elements.
struct FieldSpec {
  DType dtype;
  Shape shape;
};
[[nodiscard]] FieldSpec field_spec(StateField field, const StepLayout& layout, std::int64_t batch);

/// One block of device memory that holds all StateFields of a batch. Plans of smaller or equal batch size may share a
/// StepState. The owner of a StepState is the trainer, or other code that runs plans.
class StepState {
 public:
  StepState(Context& context, std::int64_t batch, const StepLayout& layout);

  static constexpr int kMetrics = 5;  ///< number of elements of StateField::metrics; the loss writes the first three
  static constexpr int kTopK = 3;     ///< index in StateField::metrics of the correct predictions in top k
  static constexpr int kWeight = 4;   ///< index in StateField::metrics of the sum of the weights
  [[nodiscard]] const TensorView& view(StateField field) const { return views_[static_cast<int>(field)]; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] const StepLayout& layout() const { return layout_; }
  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }

  /// Host values of the scalar fields.
  struct Scalars {
    double learning_rate;  ///< learning rate, which only the optimizer reads
    double sample_weight;  ///< factor of every sample's loss: 1 / (global number of valid samples) for the mean loss
    std::int64_t valid;    ///< number of valid samples of this batch
    std::int64_t epoch = 0;
    double weight_sum = 0;
  };
  /// Enqueues kernels on the context's stream that write the scalars and zero the metrics.
  void set(Context& context, const Scalars& scalars);

  /// Returns the u8 view of scalars, metrics, sample ids and labels. These fields lie in one range of memory, so that
  /// one copy sends all of them.
  [[nodiscard]] TensorView packed() const;
  /// Writes to host memory at `block` the bytes that the caller must then copy to packed(): the scalars, sample_ids
  /// (i64 (n)) and labels (i32 (n, positions)) of the first n rows, and zeros for metrics and all other rows. If
  /// `sample_ids` or `labels` is not given, writes zeros for this field.
  void pack(std::byte* block, const Scalars& scalars, const TensorView& sample_ids, const TensorView& labels) const;

  /// Writes sample ids to a host block that pack() has filled: row i gets the id first + i.
  void number_samples(std::byte* block, std::int64_t first) const;

  struct Metrics {
    double loss_sum = 0;
    double correct = 0;
    double bad_labels = 0;
    double top_k_correct = 0;
    double weight = 0;  ///< sum of the weights, if the plan reads weights
  };
  /// Copies the metrics to the host. Waits for the context's stream.
  [[nodiscard]] Metrics metrics(Context& context) const;

 private:
  std::int64_t batch_;
  StepLayout layout_;
  std::size_t packed_bytes_ = 0;
  Buffer block_;
  TensorView views_[kStateFields];
};

/// Returns the shape of a sample's labels: the output shape ([positions,] K) without its last axis.
[[nodiscard]] Shape positions_of(const Shape& output);

/// Returns the stored shape of an input sample: (H, W, 3) becomes (H, W, 4), other shapes stay.
[[nodiscard]] Shape stored_input_shape(const Shape& logical);

}  // namespace lockstep::nn

#include <lockstep/nn/batch/step_state.hpp>

#include <algorithm>
#include <array>
#include <cstring>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

Shape stored_input_shape(const Shape& logical) {
  Shape stored = logical;
  if (stored.rank() == 3 && stored.back() == 3) {
    stored[stored.rank() - 1] = 4;
  }
  return stored;
}

StateField input_field(InputKind kind) {
  constexpr std::array kFields{StateField::images, StateField::values, StateField::tokens};
  return kFields.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(StateField field) {
  constexpr std::array<std::string_view, kStateFields> kNames{
      "learning_rate", "sample_weight", "valid",  "epoch",        "weight_sum", "metrics",
      "sample_ids",    "images",        "values", "tokens",       "labels",     "targets",
      "weights",       "other_labels",  "shares", "other_shares", "pictures",   "picture_work"};
  return kNames[static_cast<std::size_t>(field)];
}

Shape positions_of(const Shape& output) {
  Shape positions;
  for (int axis = 0; axis + 1 < output.rank(); ++axis) {
    positions.push_back(output[axis]);
  }
  return positions;
}

std::string_view name_of(LossWeights weights) {
  constexpr std::array<std::string_view, 3> kNames{"none", "sample", "element"};
  return kNames[static_cast<std::size_t>(weights)];
}

FieldSpec field_spec(StateField field, const StepLayout& layout, std::int64_t batch) {
  const auto batched = [&](bool used, const Shape& sample) {
    Shape shape{used ? batch : 0};
    for (const std::int64_t extent : sample) {
      shape.push_back(extent);
    }
    return shape;
  };
  switch (field) {
    case StateField::learning_rate:
      return {DType::f64, {}};
    case StateField::sample_weight:
    case StateField::weight_sum:
      return {ops::accumulation_dtype(layout.dtype), {}};
    case StateField::valid:
    case StateField::epoch:
      return {DType::i64, {}};
    case StateField::metrics:
      return {DType::f64, {StepState::kMetrics}};
    case StateField::sample_ids:
      return {DType::i64, {batch}};
    case StateField::images:
      return {DType::u8, batched(layout.input_kind == InputKind::images, layout.input)};
    case StateField::values:
      return {layout.dtype, batched(layout.input_kind == InputKind::values, stored_input_shape(layout.input))};
    case StateField::tokens:
      return {DType::i32, batched(layout.input_kind == InputKind::tokens, layout.input)};
    case StateField::labels:
      return {DType::i32, batched(!layout.regression, positions_of(layout.output))};
    case StateField::weights: {
      const Shape elements = layout.regression ? layout.output : positions_of(layout.output);
      return {
          ops::accumulation_dtype(layout.dtype),
          batched(layout.weights != LossWeights::none, layout.weights == LossWeights::element ? elements : Shape{})};
    }
    case StateField::other_labels:
      return {DType::i32, batched(layout.two_labels, positions_of(layout.output))};
    case StateField::shares:
    case StateField::other_shares:
      return {ops::accumulation_dtype(layout.dtype), batched(layout.two_labels, {})};
    case StateField::pictures:
    case StateField::picture_work:
      return {DType::u8, {0}};
    case StateField::targets:
      break;
  }
  return {layout.dtype, batched(layout.regression, layout.output)};
}

namespace {

/// Returns true for a small field, which is inside the range of memory that StepState::packed() returns. The larger
/// fields follow this range.
bool is_packed(StateField field) {
  using enum StateField;
  constexpr std::array kLarge{images, values, tokens, targets, weights, other_labels, shares, other_shares};
  return std::find(kLarge.begin(), kLarge.end(), field) == kLarge.end();
}

}  // namespace

StepState::StepState(Context& context, std::int64_t batch, const StepLayout& layout) : batch_(batch), layout_(layout) {
  require<UsageError>(batch >= 1, "step state: batch size is ", batch, ", expected at least 1");
  std::array<FieldSpec, kStateFields> fields;
  std::array<std::size_t, kStateFields> offsets{};
  std::size_t bytes = 0;
  for (const bool packed : {true, false}) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (is_packed(static_cast<StateField>(i)) == packed) {
        fields[i] = field_spec(static_cast<StateField>(i), layout, batch);
        offsets[i] = bytes;
        bytes += align_up(static_cast<std::size_t>(fields[i].shape.numel()) * size_of(fields[i].dtype), kAlignment);
      }
    }
    packed_bytes_ = packed ? bytes : packed_bytes_;
  }
  block_ = Buffer(bytes, context);
  ops::fill(context, 0, TensorView(block_.data(), DType::u8, context.device(), {static_cast<std::int64_t>(bytes)}));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    views_[i] = TensorView(block_.data() + offsets[i], fields[i].dtype, context.device(), fields[i].shape);
  }
}

void StepState::set(Context& context, const Scalars& scalars) {
  ops::fill(context, scalars.learning_rate, view(StateField::learning_rate));
  ops::fill(context, scalars.sample_weight, view(StateField::sample_weight));
  ops::fill(context, scalars.weight_sum, view(StateField::weight_sum));
  ops::fill(context, static_cast<double>(scalars.valid), view(StateField::valid));
  ops::fill(context, static_cast<double>(scalars.epoch), view(StateField::epoch));
  ops::fill(context, 0, view(StateField::metrics));
}

TensorView StepState::packed() const {
  return TensorView(block_.data(), DType::u8, block_.device(), {static_cast<std::int64_t>(packed_bytes_)});
}

void StepState::pack(std::byte* block, const Scalars& scalars, const TensorView& sample_ids,
                     const TensorView& labels) const {
  std::memset(block, 0, packed_bytes_);
  const auto place = [&](StateField field) {
    return block + (static_cast<const std::byte*>(view(field).data) - block_.data());
  };
  const auto put = [&](StateField field, auto value) { std::memcpy(place(field), &value, sizeof value); };
  const auto rows = [&](StateField field, const TensorView& from) {
    if (!from.given()) {
      return;
    }
    const TensorView& to = view(field);
    require<ShapeError>(from.dtype == to.dtype && from.is_contiguous() && from.bytes() <= to.bytes(),
                        "step state: ", name_of(field), " is ", from, ", expected contiguous rows of ", to);
    if (from.numel() > 0) {
      std::memcpy(place(field), from.data, from.bytes());
    }
  };
  put(StateField::learning_rate, scalars.learning_rate);
  const auto put_real = [&](StateField field, double value) {
    if (view(field).dtype == DType::f64) {
      put(field, value);
    } else {
      put(field, static_cast<float>(value));
    }
  };
  put_real(StateField::sample_weight, scalars.sample_weight);
  put_real(StateField::weight_sum, scalars.weight_sum);
  put(StateField::valid, scalars.valid);
  put(StateField::epoch, scalars.epoch);
  rows(StateField::sample_ids, sample_ids);
  rows(StateField::labels, labels);
}

void StepState::number_samples(std::byte* block, std::int64_t first) const {
  std::byte* ids = block + (static_cast<const std::byte*>(view(StateField::sample_ids).data) - block_.data());
  for (std::int64_t row = 0; row < batch_; ++row) {
    const std::int64_t id = first + row;
    std::memcpy(ids + static_cast<std::size_t>(row) * sizeof id, &id, sizeof id);
  }
}

StepState::Metrics StepState::metrics(Context& context) const {
  const SyncScope scope(context.stream(), "StepState::metrics", SyncReason::host_data);
  std::array<double, kMetrics> host{};
  copy(context, view(StateField::metrics), TensorView(std::span(host), {kMetrics}));
  context.synchronize();
  return {.loss_sum = host[0],
          .correct = host[1],
          .bad_labels = host[2],
          .top_k_correct = host[kTopK],
          .weight = host[kWeight]};
}

}  // namespace lockstep::nn

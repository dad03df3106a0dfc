#include <lockstep/nn/step_state.hpp>

#include <array>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/align.hpp>
#include <lockstep/runtime/copy.hpp>

namespace lockstep::nn {

Shape stored_input_shape(const Shape& logical) {
  Shape stored = logical;
  if (stored.rank() == 3 && stored.back() == 3) {
    stored[stored.rank() - 1] = 4;
  }
  return stored;
}

std::string_view name_of(StateField field) {
  constexpr std::array<std::string_view, kStateFields> kNames{"learning_rate", "loss_scale", "valid",  "epoch",
                                                              "metrics",       "sample_ids", "images", "input",
                                                              "tokens",        "labels",     "target"};
  return kNames[static_cast<std::size_t>(field)];
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
    case StateField::loss_scale:
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
    case StateField::input:
      return {layout.dtype, batched(layout.input_kind == InputKind::values, stored_input_shape(layout.input))};
    case StateField::tokens:
      return {DType::i32, batched(layout.input_kind == InputKind::tokens, layout.input)};
    case StateField::labels: {
      Shape positions;
      for (int axis = 0; axis + 1 < layout.output.rank(); ++axis) {
        positions.push_back(layout.output[axis]);
      }
      return {DType::i32, batched(!layout.regression, positions)};
    }
    case StateField::target:
      break;
  }
  return {layout.dtype, batched(layout.regression, layout.output)};
}

StepState::StepState(Context& context, std::int64_t batch, const StepLayout& layout) : batch_(batch) {
  require<UsageError>(batch >= 1, "step state: batch size is ", batch, ", expected at least 1");
  std::array<FieldSpec, kStateFields> fields;
  std::array<std::size_t, kStateFields> offsets{};
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    fields[i] = field_spec(static_cast<StateField>(i), layout, batch);
    offsets[i] = bytes;
    bytes += align_up(static_cast<std::size_t>(fields[i].shape.numel()) * size_of(fields[i].dtype), kAlignment);
  }
  block_ = Buffer(bytes, context);
  ops::fill(context, 0, TensorView(block_.data(), DType::u8, context.device(), {static_cast<std::int64_t>(bytes)}));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    views_[i] = TensorView(block_.data() + offsets[i], fields[i].dtype, context.device(), fields[i].shape);
  }
}

void StepState::set(Context& context, const Scalars& scalars) {
  ops::fill(context, scalars.learning_rate, view(StateField::learning_rate));
  ops::fill(context, scalars.loss_scale, view(StateField::loss_scale));
  ops::fill(context, static_cast<double>(scalars.valid), view(StateField::valid));
  ops::fill(context, static_cast<double>(scalars.epoch), view(StateField::epoch));
  ops::fill(context, 0, view(StateField::metrics));
}

StepState::Metrics StepState::metrics(Context& context) const {
  const SyncScope scope(context.stream(), "StepState::metrics", SyncReason::host_data);
  std::array<double, kMetrics> host{};
  copy(context, view(StateField::metrics), TensorView(std::span(host), {kMetrics}));
  context.synchronize();
  return {.loss_sum = host[0], .correct = host[1], .bad_labels = host[2], .top_k_correct = host[3]};
}

}  // namespace lockstep::nn

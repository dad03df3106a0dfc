#include <lockstep/nn/step_state.hpp>

#include <array>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/copy.hpp>

namespace lockstep::nn {

Shape stored_input_shape(const Shape& logical) {
  Shape stored = logical;
  if (stored.rank() == 3 && stored.back() == 3) {
    stored[stored.rank() - 1] = 4;
  }
  return stored;
}

StepState::StepState(Context& context, std::int64_t batch, const Shape& input_shape, DType dtype, bool uint8_input)
    : batch_(batch), dtype_(dtype) {
  require<UsageError>(batch >= 1, "step state: batch size is ", batch, ", expected at least 1");
  const auto batched = [&](const Shape& sample) {
    Shape shape{batch};
    for (const std::int64_t extent : sample) {
      shape.push_back(extent);
    }
    return shape;
  };
  struct Field {
    StateField field;
    DType dtype;
    Shape shape;
  };
  std::array<Field, kStateFields> fields{{
      {StateField::learning_rate, DType::f64, {}},
      {StateField::loss_scale, dtype, {}},
      {StateField::valid, DType::i64, {}},
      {StateField::epoch, DType::i64, {}},
      {StateField::metrics, DType::f64, {3}},
      {StateField::images, DType::u8, uint8_input ? batched(input_shape) : Shape{0}},
      {StateField::sample_ids, DType::i64, {batch}},
      {StateField::labels, DType::i32, {batch}},
      {StateField::input, dtype, uint8_input ? Shape{0} : batched(stored_input_shape(input_shape))},
  }};
  std::size_t bytes = 0;
  std::array<std::size_t, kStateFields> offsets{};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    offsets[i] = bytes;
    const std::size_t size = static_cast<std::size_t>(fields[i].shape.numel()) * size_of(fields[i].dtype);
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  block_ = Buffer(bytes, context);
  ops::fill(context, 0, TensorView(block_.data(), DType::u8, context.device(), {static_cast<std::int64_t>(bytes)}));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    views_[static_cast<std::size_t>(fields[i].field)] =
        TensorView(block_.data() + offsets[i], fields[i].dtype, context.device(), fields[i].shape);
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
  std::array<double, 3> host{};
  copy(context, view(StateField::metrics), TensorView(std::span(host), {3}));
  context.synchronize();
  return {.loss_sum = host[0], .correct = host[1], .bad_labels = host[2]};
}

}  // namespace lockstep::nn

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/kernels/batch_norm_pool.hpp>
#include <lockstep/kernels/max_pool2d.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

ops::PoolDesc square_window(std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  return {.kernel = {kernel, kernel}, .stride = {stride, stride}, .pad_before = {pad, pad}, .pad_after = {pad, pad}};
}

std::string settings_of(const ops::PoolDesc& desc) {
  return concat("kernel ", desc.kernel[0], ", stride ", desc.stride[0], ", pad ", desc.pad_before[0]);
}

/// Of one sample.
Shape pooled(const Layer& layer, const ops::PoolDesc& desc, const Shape& x) {
  require<ShapeError>(x.rank() == 3, layer.name(), ": input ", x, ", expected (H, W, C)");
  const Shape y = ops::pooled_shape(desc, {1, x[0], x[1], x[2]});
  return {y[1], y[2], y[3]};
}

}  // namespace

MaxPoolLayer::MaxPoolLayer(std::string name, std::int64_t kernel, std::int64_t stride, std::int64_t pad)
    : Layer(std::move(name)), desc_(square_window(kernel, stride, pad)) {}

Shape MaxPoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled(*this, desc_, inputs[0]);
}

std::string MaxPoolLayer::settings() const {
  return settings_of(desc_);
}

bool MaxPoolLayer::takes_norm(int /*i*/, bool relu) const {
  return relu && ops::is_stem_pool(desc_);
}

void MaxPoolLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const Shape shape = builder.batched(output_shape({&in, 1}));
  const SlotId y = builder.activation(name(), shape);
  const ops::PoolDesc desc = desc_;
  const SlotId coefficients = builder.left_norm(0).coefficients;
  if (coefficients.valid()) {
    const SlotId winners = builder.tensor(name() + ".index", shape, DType::u8);
    builder.call("batch_norm pool_forward", {x, coefficients}, {y, winners}, 0,
                 [=](Context& context, const Frame& frame) {
                   ops::batch_norm_pool_forward(context, desc, frame[x], frame[coefficients], frame[y], frame[winners]);
                 });
    builder.set_output(y);
    builder.on_backward([=](PlanBuilder& b) { b.pass_pooled_gradient({b.output_gradients()[0], winners, desc}); });
    return;
  }
  const SlotId index = builder.training() ? builder.tensor(name() + ".index", shape, DType::i32) : SlotId{};
  builder.call("max_pool forward", {x}, {y, index}, 0, [=](Context& context, const Frame& frame) {
    ops::max_pool2d_forward(context, desc, frame[x], frame[y], frame[index]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, {}, false);
    if (dx.wanted()) {
      b.call("max_pool backward", {dy, index}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::max_pool2d_backward(context, desc, frame[dy], frame[index], frame[dx.slot]);
      });
    }
  });
}

AveragePoolLayer::AveragePoolLayer(std::string name, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                                   ops::AverageOver over)
    : Layer(std::move(name)), desc_(square_window(kernel, stride, pad)), over_(over) {}

Shape AveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled(*this, desc_, inputs[0]);
}

std::string AveragePoolLayer::settings() const {
  return settings_of(desc_) + (over_ == ops::AverageOver::window ? "" : ", padding does not count");
}

void AveragePoolLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
  const ops::PoolDesc desc = desc_;
  const ops::AverageOver over = over_;
  builder.call("average_pool forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::average_pool2d_forward(context, desc, over, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, {}, false);
    if (dx.wanted()) {
      b.call("average_pool backward", {dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::average_pool2d_backward(context, desc, over, frame[dy], frame[dx.slot]);
      });
    }
  });
}

Shape GlobalAveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() == 3, name(), ": input ", inputs[0], ", expected (H, W, C)");
  return {inputs[0][2]};
}

void GlobalAveragePoolLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
  builder.call("global_average_pool forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::global_average_pool_forward(context, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, {}, false);
    if (dx.wanted()) {
      b.call("global_average_pool backward", {dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::global_average_pool_backward(context, frame[dy], frame[dx.slot]);
      });
    }
  });
}

}  // namespace lockstep::nn

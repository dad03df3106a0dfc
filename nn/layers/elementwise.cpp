#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/relu.hpp>
#include <lockstep/kernels/subsample_pad.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan_builder.hpp>

namespace lockstep::nn {

void ReluLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const SlotId y = builder.may_overwrite_input() ? builder.alias(x, name(), shape) : builder.activation(name(), shape);
  builder.call("relu forward", {x}, {y}, 0,
               [=](Context& context, const Frame& frame) { ops::relu_forward(context, frame[x], frame[y]); });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      b.call("relu backward", {y, dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::relu_backward(context, frame[y], frame[dy], frame[dx.slot]);
      });
    }
  });
}

ActivationLayer::ActivationLayer(std::string name, ops::Activation function)
    : Layer(std::move(name)), function_(function) {
  static_cast<void>(ops::name_of(function));  // UsageError for a value that is none
}

void ActivationLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const ops::Activation function = function_;
  // Backward reads x, not y; so only without backward may y take the place of x.
  const SlotId y = !builder.training() && builder.may_overwrite_input() ? builder.alias(x, name(), shape)
                                                                        : builder.activation(name(), shape);
  builder.call(kind() + " forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::activation_forward(context, function, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      b.call(kind() + " backward", {x, dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::activation_backward(context, function, frame[x], frame[dy], frame[dx.slot]);
      });
    }
  });
}

SubsamplePadLayer::SubsamplePadLayer(std::string name, std::int64_t channels, std::int64_t stride)
    : Layer(std::move(name)), channels_(channels), stride_(stride) {
  require<ShapeError>(stride >= 1, this->name(), ": stride is ", stride, ", expected at least 1");
}

Shape SubsamplePadLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() == 3 && inputs[0][2] <= channels_, name(), ": input ", inputs[0],
                      ", expected (H, W, C) with C <= ", channels_);
  return {(inputs[0][0] + stride_ - 1) / stride_, (inputs[0][1] + stride_ - 1) / stride_, channels_};
}

void SubsamplePadLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
  const std::int64_t stride = stride_;
  builder.call("subsample_pad forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::subsample_pad_forward(context, stride, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      b.call("subsample_pad backward", {dy, dx.slot}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::subsample_pad_backward(context, stride, frame[dy], dx.mode, frame[dx.slot]);
      });
    }
  });
}

}  // namespace lockstep::nn

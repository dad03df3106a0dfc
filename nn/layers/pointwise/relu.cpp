#include <lockstep/kernels/relu.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

class ReluLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "relu"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  void plan(PlanBuilder& builder) const override;
};

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

}  // namespace

NodeId ModelBuilder::relu(const std::string& name, NodeId x) {
  return add_channelwise(std::make_shared<ReluLayer>(name), {x});
}

}  // namespace lockstep::nn

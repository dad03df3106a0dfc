#include <lockstep/kernels/relu.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>

namespace lockstep::nn {

namespace {

class ReluLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "relu"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] std::optional<DenseForm> dense_form() const override {
    return DenseForm{.activation = ops::Activation::relu};
  }
  void plan(PlanBuilder& builder) const override;
};

void ReluLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const SlotId y = output_like_input(builder, name(), /*reads_input=*/false);
  builder.call("relu forward", {x}, {y}, 0,
               [=](Context& context, const Frame& frame) { ops::relu_forward(context, frame[x], frame[y]); });
  builder.set_output(y);
  on_symmetric_gradient(builder, [=](PlanBuilder& b, SlotId dy, SlotId dx) {
    b.call("relu backward", {y, dy}, {dx}, 0,
           [=](Context& context, const Frame& frame) { ops::relu_backward(context, frame[y], frame[dy], frame[dx]); });
  });
}

}  // namespace

NodeId ModelBuilder::relu(const std::string& name, NodeId x) {
  return add_channelwise(std::make_shared<ReluLayer>(name), {x});
}

}  // namespace lockstep::nn

#include <lockstep/kernels/activation.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// One of the functions of kernels/activation.hpp.
class ActivationLayer final : public Layer {
 public:
  ActivationLayer(std::string name, ops::Activation function) : Layer(std::move(name)), function_(function) {
    static_cast<void>(ops::name_of(function));  // UsageError for a value that is none
  }
  [[nodiscard]] std::string kind() const override { return std::string(ops::name_of(function_)); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
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

 private:
  ops::Activation function_;
};

}  // namespace

NodeId ModelBuilder::activation(const std::string& name, NodeId x, ops::Activation function) {
  if (function == ops::Activation::sigmoid) {
    require_all_channels(name, x);  // it makes 1/2 of a zero
  }
  return add_channelwise(std::make_shared<ActivationLayer>(name, function), {x});
}

}  // namespace lockstep::nn

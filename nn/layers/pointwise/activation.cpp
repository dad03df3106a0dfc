#include <lockstep/kernels/activation.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>

namespace lockstep::nn {

namespace {

/// Applies one of the functions of kernels/activation.hpp to each element.
class ActivationLayer final : public Layer {
 public:
  ActivationLayer(std::string name, ops::Activation function) : Layer(std::move(name)), function_(function) {
    static_cast<void>(ops::name_of(function));  // throws UsageError for a value outside the enumeration
  }
  [[nodiscard]] std::string kind() const override { return std::string(ops::name_of(function_)); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  [[nodiscard]] std::optional<DenseForm> dense_form() const override { return DenseForm{.activation = function_}; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const ops::Activation function = function_;
    const SlotId y = output_like_input(builder, name(), /*reads_input=*/true);
    builder.call(kind() + " forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
      ops::activation_forward(context, function, frame[x], frame[y]);
    });
    builder.set_output(y);
    on_symmetric_gradient(builder, [=, this](PlanBuilder& b, SlotId dy, SlotId dx) {
      b.call(kind() + " backward", {x, dy}, {dx}, 0, [=](Context& context, const Frame& frame) {
        ops::activation_backward(context, function, frame[x], frame[dy], frame[dx]);
      });
    });
  }

 private:
  ops::Activation function_;
};

}  // namespace

NodeId ModelBuilder::activation(const std::string& name, NodeId x, ops::Activation function) {
  if (function == ops::Activation::sigmoid) {
    require_all_channels(name, x);  // sigmoid(0) is 1/2: padded channels would not stay zero
  }
  return add_channelwise(std::make_shared<ActivationLayer>(name, function), {x});
}

}  // namespace lockstep::nn

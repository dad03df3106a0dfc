#include <lockstep/kernels/add.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// Adds two tensors of equal shape, as at the end of a residual branch. The gradient of each input equals the gradient
/// of the output.
class AddLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "add"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0] == inputs[1], name(), ": inputs ", inputs[0], " and ", inputs[1],
                        ", expected both of one shape");
    return inputs[0];
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const SlotId a = builder.input(0);
    const SlotId b = builder.input(1);
    const Shape shape = builder.batched(builder.input_shape());
    SlotId sum;
    for (const int i : {1, 0}) {  // tries to reuse the memory of b first, then the memory of a
      if (!sum.valid() && builder.may_overwrite_input(i)) {
        sum = builder.alias(builder.input(i), name(), shape);
      }
    }
    if (!sum.valid()) {
      sum = builder.activation(name(), shape);
    }
    builder.call("add", {a, b}, {sum}, 0,
                 [=](Context& context, const Frame& frame) { ops::add(context, frame[a], frame[b], frame[sum]); });
    builder.set_output(sum);
    builder.on_backward([](PlanBuilder& after) {
      const SlotId dy = after.output_gradients()[0];
      after.pass_gradient(0, dy);
      after.pass_gradient(1, dy);
    });
    builder.on_tangent([](PlanBuilder& after) {
      const SlotId t = after.input_tangent(0), other = after.input_tangent(1), to = after.new_tangent();
      after.call("add", {t, other}, {to}, 0,
                 [=](Context& context, const Frame& frame) { ops::add(context, frame[t], frame[other], frame[to]); });
    });
  }
};

}  // namespace

NodeId ModelBuilder::add(const std::string& name, NodeId a, NodeId b) {
  return add_channelwise(std::make_shared<AddLayer>(name), {a, b});
}

}  // namespace lockstep::nn

#include <vector>

#include <lockstep/kernels/batch_norm_pool.hpp>
#include <lockstep/kernels/max_pool2d.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/layers/pool/detail/pool_steps.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

class MaxPoolLayer final : public PoolLayer {
 public:
  MaxPoolLayer(int axes, std::string name, const PoolWindow& window)
      : PoolLayer("max_pool", axes, std::move(name), window) {}
  [[nodiscard]] bool takes_norm(int /*i*/, bool relu) const override {
    return relu && axes_ == 2 && ops::is_stem_pool(plane_window(window_, 0, 1));
  }
  void plan(PlanBuilder& builder) const override;
};

void MaxPoolLayer::plan(PlanBuilder& builder) const {
  const Shape in = builder.input_shape();
  const Shape shape = builder.batched(output_shape({&in, 1}));
  const SlotId coefficients = builder.unapplied_norm(0).coefficients;
  if (coefficients.valid()) {
    const SlotId x = builder.input();
    const SlotId y = builder.activation(name(), shape);
    const ops::PoolDesc desc = plane_window(window_, 0, 1);
    const SlotId winners = builder.tensor(name() + ".index", shape, DType::u8);
    builder.call("batch_norm pool_forward", {x, coefficients}, {y, winners}, 0,
                 [=](Context& context, const Frame& frame) {
                   ops::batch_norm_pool_forward(context, desc, frame[x], frame[coefficients], frame[y], frame[winners]);
                 });
    builder.set_output(y);
    builder.on_backward([=](PlanBuilder& b) { b.pass_pooled_gradient({b.output_gradients()[0], winners, desc}); });
    return;
  }
  const std::vector<PoolStep> steps = steps_of(axes_, window_, builder.batched(in));
  std::vector<SlotId> indices(steps.size());
  const SlotId y = builder.activation(name(), shape);
  const auto step_forward = [&](std::size_t i, const PoolStep& step, SlotId from, SlotId to) {
    const SlotId index = builder.training() ? builder.tensor(name() + ".index", step.y, DType::i32) : SlotId{};
    indices[i] = index;
    builder.call("max_pool forward", {from}, {to, index}, 0, [=](Context& context, const Frame& frame) {
      ops::max_pool2d_forward(context, step.desc, frame[from].reshape(step.x), frame[to].reshape(step.y), frame[index]);
    });
  };
  plan_steps(builder, name(), steps, builder.input(), y, step_forward);
  builder.set_output(y);
  builder.on_backward([=, this](PlanBuilder& b) {
    plan_steps_back(b, name(), steps, [&](std::size_t i, const PoolStep& step, SlotId dy, SlotId dx) {
      const SlotId index = indices[i];
      b.call("max_pool backward", {dy, index}, {dx}, 0, [=](Context& context, const Frame& frame) {
        ops::max_pool2d_backward(context, step.desc, frame[dy].reshape(step.y), frame[index],
                                 frame[dx].reshape(step.x));
      });
    });
  });
}

}  // namespace

NodeId ModelBuilder::max_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(2, name, PoolWindow{kernel, stride, pad}), {x});
}

NodeId ModelBuilder::max_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(1, name, PoolWindow{kernel, stride, pad}), {x});
}

NodeId ModelBuilder::max_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(3, name, PoolWindow{kernel, stride, pad}), {x});
}

}  // namespace lockstep::nn

#include <vector>

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>
#include <lockstep/nn/layers/pool/detail/pool_steps.hpp>

namespace lockstep::nn {

namespace {

class AveragePoolLayer final : public PoolLayer {
 public:
  AveragePoolLayer(int axes, std::string name, const PoolWindow& window, ops::AverageOver over)
      : PoolLayer("average_pool", axes, std::move(name), window), over_(over) {}
  [[nodiscard]] std::string settings() const override {
    return PoolLayer::settings() + (over_ == ops::AverageOver::window ? "" : ", padding does not count");
  }
  void plan(PlanBuilder& builder) const override {
    const Shape in = builder.input_shape();
    const std::vector<PoolStep> steps = steps_of(axes_, window_, builder.batched(in));
    const ops::AverageOver over = over_;
    const SlotId output = builder.activation(name(), builder.batched(output_shape({&in, 1})));
    const auto forward = [=, this](PlanBuilder& b, SlotId from, SlotId to) {
      plan_steps(b, name(), steps, from, to, [&](std::size_t /*i*/, const PoolStep& step, SlotId x, SlotId y) {
        b.call("average_pool forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
          ops::average_pool2d_forward(context, step.desc, over, frame[x].reshape(step.x), frame[y].reshape(step.y));
        });
      });
    };
    forward(builder, builder.input(), output);
    builder.set_output(output);
    on_input_tangent(builder, forward);
    builder.on_backward([=, this](PlanBuilder& b) {
      plan_steps_back(b, name(), steps, [&](std::size_t /*i*/, const PoolStep& step, SlotId dy, SlotId dx) {
        b.call("average_pool backward", {dy}, {dx}, 0, [=](Context& context, const Frame& frame) {
          ops::average_pool2d_backward(context, step.desc, over, frame[dy].reshape(step.y), frame[dx].reshape(step.x));
        });
      });
    });
  }

 private:
  ops::AverageOver over_;
};

}  // namespace

NodeId ModelBuilder::average_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                                  ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(2, name, PoolWindow{kernel, stride, pad}, over), {x});
}

NodeId ModelBuilder::average_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride,
                                    AxisSizes pad, ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(1, name, PoolWindow{kernel, stride, pad}, over), {x});
}

NodeId ModelBuilder::average_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride,
                                    AxisSizes pad, ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(3, name, PoolWindow{kernel, stride, pad}, over), {x});
}

}  // namespace lockstep::nn

#include <lockstep/kernels/subsample_pad.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>

namespace lockstep::nn {

namespace {

/// Shortcut without parameters: keeps every stride-th pixel and adds zero channels (option A of He et al. 2015).
class SubsamplePadLayer final : public Layer {
 public:
  SubsamplePadLayer(std::string name, std::int64_t channels, std::int64_t stride)
      : Layer(std::move(name)), channels_(channels), stride_(stride) {
    require<ShapeError>(stride >= 1, this->name(), ": stride is ", stride, ", expected at least 1");
  }
  [[nodiscard]] std::string kind() const override { return "subsample_pad"; }
  [[nodiscard]] std::string settings() const override { return concat("stride ", stride_); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() == 3 && inputs[0][2] <= channels_, name(), ": input ", inputs[0],
                        ", expected (H, W, C) with C <= ", channels_);
    return {(inputs[0][0] + stride_ - 1) / stride_, (inputs[0][1] + stride_ - 1) / stride_, channels_};
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const Shape in = builder.input_shape();
    const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
    const std::int64_t stride = stride_;
    const auto forward = [=](PlanBuilder& b, SlotId from, SlotId to) {
      b.call("subsample_pad forward", {from}, {to}, 0, [=](Context& context, const Frame& frame) {
        ops::subsample_pad_forward(context, stride, frame[from], frame[to]);
      });
    };
    forward(builder, x, y);
    on_input_tangent(builder, forward);
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

 private:
  std::int64_t channels_;
  std::int64_t stride_;
};

}  // namespace

NodeId ModelBuilder::subsample_pad(const std::string& name, NodeId x, std::int64_t channels, std::int64_t stride) {
  return add_stored(std::make_shared<SubsamplePadLayer>(name, channels, stride), {x});
}

}  // namespace lockstep::nn

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>

namespace lockstep::nn {

namespace {

/// Computes the mean of each channel over all spatial axes: maps (T, C), (H, W, C) or (D, H, W, C) to (C).
class GlobalAveragePoolLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "global_average_pool"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() >= 2 && inputs[0].rank() <= 4, name(), ": input ", inputs[0],
                        ", expected (T, C), (H, W, C) or (D, H, W, C)");
    return {inputs[0].back()};
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const Shape in = builder.input_shape();
    const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
    const int last = in.rank() - 2;  // index of the innermost spatial axis
    std::int64_t rows = 1;
    for (int i = 0; i < last; ++i) {
      rows *= in[i];
    }
    const Shape images{builder.batch(), rows, in[last], in.back()};
    const auto forward = [=](PlanBuilder& b, SlotId from, SlotId to) {
      b.call("global_average_pool forward", {from}, {to}, 0, [=](Context& context, const Frame& frame) {
        ops::global_average_pool_forward(context, frame[from].reshape(images), frame[to]);
      });
    };
    forward(builder, x, y);
    on_input_tangent(builder, forward);
    builder.set_output(y);
    on_input_gradient(builder, /*in_place=*/false, [=](PlanBuilder& b, SlotId dy, SlotId dx) {
      b.call("global_average_pool backward", {dy}, {dx}, 0, [=](Context& context, const Frame& frame) {
        ops::global_average_pool_backward(context, frame[dy], frame[dx].reshape(images));
      });
    });
  }
};

}  // namespace

NodeId ModelBuilder::global_average_pool(const std::string& name, NodeId x) {
  return add_channelwise(std::make_shared<GlobalAveragePoolLayer>(name), {x});
}

}  // namespace lockstep::nn

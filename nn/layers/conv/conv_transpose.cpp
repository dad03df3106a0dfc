#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/kernels/subsample_pad.hpp>
#include <lockstep/nn/layers/conv/detail/conv_passes.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// Transposed convolution. There is a convolution with the same weight that maps this layer's output to this layer's
/// input; the layer's forward is the data gradient of that convolution. The weight has PyTorch's shape (C, K / groups,
/// R, S) for C input and K output channels. Initial weights are as in ConvLayer.
class ConvTransposeLayer final : public Layer {
 public:
  ConvTransposeLayer(int axes, std::string name, std::int64_t in_channels, std::int64_t channels,
                     const ConvTransposeOptions& options)
      : Layer(std::move(name)), axes_(axes), in_channels_(in_channels), channels_(channels), options_(options) {
    require_axes(this->name(), axes,
                 {{"kernel", options.kernel},
                  {"stride", options.stride},
                  {"pad", options.pad},
                  {"output_pad", options.output_pad},
                  {"dilation", options.dilation}});
    require<ShapeError>(channels >= 1 && options.kernel.least() >= 1 && options.stride.least() >= 1 &&
                            options.pad.least() >= 0 && options.output_pad.least() >= 0 && options.groups >= 1 &&
                            options.dilation.least() >= 1,
                        this->name(), ": channels ", channels, ", kernel ", options.kernel, ", stride ", options.stride,
                        ", pad ", options.pad, ", output_pad ", options.output_pad, ", groups ", options.groups,
                        ", dilation ", options.dilation, "; expected positive values, pad and output_pad >= 0");
    for (int i = 0; i < axes; ++i) {
      require<ShapeError>(options.output_pad[i] < options.stride[i], this->name(), ": output_pad is ",
                          options.output_pad, ", expected less than the stride ", options.stride);
    }
    require<ShapeError>(in_channels % options.groups == 0 && channels % options.groups == 0, this->name(),
                        ": groups is ", options.groups, ", expected a divisor of the ", in_channels,
                        " channels that it reads and of the ", channels, " that it makes");
  }
  [[nodiscard]] std::string kind() const override { return concat("conv_transpose", axes_, 'd'); }
  [[nodiscard]] std::string settings() const override { return conv_settings(of_convolution(), options_.output_pad); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape y = convolution(inputs[0]).x_shape();
    return Shape(std::span(y.begin() + 1, y.end()));
  }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> /*inputs*/) const override {
    const std::int64_t second = channels_ / options_.groups;
    return conv_parameters(name(), in_channels_, second, second, axes_, options_.kernel, channels_, options_.bias);
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  /// Returns the convolution whose data gradient is this layer's forward, and whose forward is this layer's data
  /// gradient.
  [[nodiscard]] ops::ConvDesc convolution(const Shape& input) const {
    require<ShapeError>(input.rank() == axes_ + 1, name(), ": input ", input, ", expected ", sample_text(axes_));
    ops::ConvDesc desc = describe_conv(axes_, input, in_channels_, of_convolution());
    desc.in_channels = channels_;
    for (int i = 0; i < axes_; ++i) {
      const std::int64_t kernel = options_.kernel[i], stride = options_.stride[i], pad = options_.pad[i];
      const std::int64_t made =
          (input[i] - 1) * stride - 2 * pad + options_.dilation[i] * (kernel - 1) + options_.output_pad[i] + 1;
      require<ShapeError>(made >= 1, name(), ": of an extent of ", input[i], " it makes ", made, " with kernel ",
                          kernel, ", stride ", stride, " and pad ", pad, ", expected at least 1");
      desc.in_size[static_cast<std::size_t>(i)] = made;
    }
    return desc;
  }
  [[nodiscard]] ConvOptions of_convolution() const {
    const auto& [kernel, stride, pad, output_pad, bias, groups, dilation] = options_;
    return {.kernel = kernel, .stride = stride, .pad = pad, .groups = groups, .dilation = dilation};
  }

  int axes_;
  std::int64_t in_channels_;
  std::int64_t channels_;
  ConvTransposeOptions options_;
};

void ConvTransposeLayer::plan(PlanBuilder& builder) const {
  ops::ConvDesc desc = convolution(builder.input_shape());
  desc.batch = builder.batch();
  desc.dtype = builder.dtype();
  desc.tf32 = builder.options().tf32;

  // The weight has no rows for padded input channels. So the forward drops these channels, and their gradients are 0.
  const bool padded = builder.input_shape().back() != in_channels_;
  const auto without_padding = [=, this](PlanBuilder& b, SlotId stored) {
    const SlotId dense = padded ? b.activation(name() + ".x", desc.y_shape()) : stored;
    if (padded) {
      b.call("subsample_pad backward", {stored}, {dense}, 0, [=](Context& context, const Frame& frame) {
        ops::subsample_pad_backward(context, 1, frame[stored], ops::GradMode::overwrite, frame[dense]);
      });
    }
    return dense;
  };
  const SlotId x = without_padding(builder, builder.input());
  const SlotId weight = builder.weight(name() + ".weight");
  const Shape shape = desc.x_shape();
  SlotId y = builder.activation(name(), shape);
  append_pass(builder, kind() + " forward",
              plan_conv_pass(builder, name() + " forward", desc, ops::ConvPass::backward_data), x, weight, {}, y);
  if (options_.bias) {  // append_pass() above runs a data gradient, which adds no bias
    const SlotId bias = builder.parameter(name() + ".bias");
    const SlotId product = y;
    y = builder.alias(product, name() + ".y", shape);
    builder.call("linear_epilogue forward", {product, bias}, {y}, 0, [=](Context& context, const Frame& frame) {
      ops::linear_epilogue_forward(context, ops::Activation::identity, frame[product], frame[bias], {}, frame[y]);
    });
  }
  builder.set_output(y);

  builder.on_tangent([=, this](PlanBuilder& b) {
    const SlotId t = without_padding(b, b.input_tangent());
    append_pass(b, kind() + " forward", plan_conv_pass(b, name() + " tangent", desc, ops::ConvPass::backward_data), t,
                weight, {}, b.new_tangent());
  });
  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    // The weight gradient comes first: the all-reduce of its bucket can start while the data gradient is computed.
    append_weight_gradient(b, *this, desc, dy, x);
    if (options_.bias) {
      b.reduce_rows(dy, {shape.numel() / channels_, channels_}, b.parameter_gradient(name() + ".bias"));
    }
    // A forward pass of the convolution computes dx. Forward passes cannot add to an existing gradient, so
    // input_gradient() must return memory to overwrite.
    if (!b.wants_input_gradient(0)) {
      return;
    }
    const auto plan = plan_conv_pass(b, name() + " backward_data", desc, ops::ConvPass::forward);
    if (!padded) {
      append_pass(b, kind() + " backward_data", plan, dy, weight, {}, b.input_gradient(0, {}, false).slot);
      return;
    }
    const SlotId made = b.activation("d(" + name() + ".x)", desc.y_shape());
    append_pass(b, kind() + " backward_data", plan, dy, weight, {}, made);
    // The call appended right after input_gradient() must write dx. append_pass() does not write dx, so it comes before
    // input_gradient().
    const GradientTarget dx = b.input_gradient(0, {}, false);
    b.call("subsample_pad forward", {made}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
      ops::subsample_pad_forward(context, 1, frame[made], frame[dx.slot]);
    });
  });
}

}  // namespace

NodeId ModelBuilder::add_conv_transpose(int axes, const std::string& name, NodeId x, std::int64_t channels,
                                        const ConvTransposeOptions& options) {
  return add_stored(std::make_shared<ConvTransposeLayer>(axes, name, this->channels(x), channels, options), {x});
}

}  // namespace lockstep::nn

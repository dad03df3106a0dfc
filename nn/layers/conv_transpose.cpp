#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/nn/layers/conv.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

ConvTransposeLayer::ConvTransposeLayer(int axes, std::string name, std::int64_t in_channels, std::int64_t channels,
                                       const ConvTransposeOptions& options)
    : Layer(std::move(name)), axes_(axes), in_channels_(in_channels), channels_(channels), options_(options) {
  require<ShapeError>(channels >= 1 && options.kernel >= 1 && options.stride >= 1 && options.pad >= 0 &&
                          options.output_pad >= 0 && options.groups >= 1 && options.dilation >= 1,
                      this->name(), ": channels ", channels, ", kernel ", options.kernel, ", stride ", options.stride,
                      ", pad ", options.pad, ", output_pad ", options.output_pad, ", groups ", options.groups,
                      ", dilation ", options.dilation, "; expected positive values, pad and output_pad >= 0");
  require<ShapeError>(options.output_pad < options.stride, this->name(), ": output_pad is ", options.output_pad,
                      ", expected less than the stride ", options.stride);
  require<ShapeError>(in_channels % options.groups == 0 && channels % options.groups == 0, this->name(), ": groups is ",
                      options.groups, ", expected a divisor of the ", in_channels,
                      " channels that it reads and of the ", channels, " that it makes");
}

std::string ConvTransposeLayer::kind() const {
  return concat("conv_transpose", axes_, 'd');
}

std::string ConvTransposeLayer::settings() const {
  std::string text = concat("stride ", options_.stride, ", pad ", options_.pad);
  if (options_.output_pad != 0) {
    text += concat(", output_pad ", options_.output_pad);
  }
  if (options_.groups != 1) {
    text += concat(", groups ", options_.groups);
  }
  if (options_.dilation != 1) {
    text += concat(", dilation ", options_.dilation);
  }
  return text;
}

ops::ConvDesc ConvTransposeLayer::convolution(const Shape& input) const {
  require<ShapeError>(input.rank() == axes_ + 1, name(), ": input ", input, ", expected ", sample_text(axes_));
  ops::ConvDesc desc;
  desc.spatial_rank = axes_;
  desc.in_channels = channels_;
  desc.out_channels = input.back();
  for (int i = 0; i < axes_; ++i) {
    const auto u = static_cast<std::size_t>(i);
    desc.in_size[u] = (input[i] - 1) * options_.stride - 2 * options_.pad + options_.dilation * (options_.kernel - 1) +
                      options_.output_pad + 1;
    require<ShapeError>(desc.in_size[u] >= 1, name(), ": of an extent of ", input[i], " it makes ", desc.in_size[u],
                        " with kernel ", options_.kernel, ", stride ", options_.stride, " and pad ", options_.pad,
                        ", expected at least 1");
    desc.kernel[u] = options_.kernel;
    desc.stride[u] = options_.stride;
    desc.pad_before[u] = options_.pad;
    desc.pad_after[u] = options_.pad;
    desc.dilation[u] = options_.dilation;
  }
  desc.groups = options_.groups;
  return desc;
}

Shape ConvTransposeLayer::output_shape(std::span<const Shape> inputs) const {
  const Shape y = convolution(inputs[0]).x_shape();
  return Shape(std::span(y.begin() + 1, y.end()));
}

std::vector<ParameterSpec> ConvTransposeLayer::parameters(std::span<const Shape> /*inputs*/) const {
  const std::int64_t second = channels_ / options_.groups;
  return conv_parameters(name(), in_channels_, second, second, axes_, options_.kernel, channels_, options_.bias);
}

void ConvTransposeLayer::plan(PlanBuilder& builder) const {
  ops::ConvDesc desc = convolution(builder.input_shape());
  desc.batch = builder.batch();
  desc.dtype = builder.dtype();
  desc.tf32 = builder.options().tf32;

  const SlotId x = builder.input();
  const SlotId weight = builder.weight(name() + ".weight");
  const Shape shape = desc.x_shape();
  SlotId y = builder.activation(name(), shape);
  {
    const auto plan = plan_conv_pass(builder, name() + " forward", desc, ops::ConvPass::backward_data);
    const SlotId scratch = builder.scratch(plan->workspace_bytes());
    builder.call(kind() + " forward " + plan->choice(), {x, weight}, {y, scratch}, desc.flops(),
                 [=](Context& context, const Frame& frame) {
                   ops::conv2d(context, *plan, frame[x], frame[weight], {}, frame[y], frame[scratch]);
                 });
  }
  if (options_.bias) {  // the gradient pass adds none
    const SlotId bias = builder.parameter(name() + ".bias");
    const SlotId product = y;
    y = builder.alias(product, name() + ".y", shape);
    builder.call("linear_epilogue forward", {product, bias}, {y}, 0, [=](Context& context, const Frame& frame) {
      ops::linear_epilogue_forward(context, ops::Activation::identity, frame[product], frame[bias], {}, frame[y]);
    });
  }
  builder.set_output(y);

  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    // The weight gradient first: its bucket can start while the data gradient is computed.
    const GradientTarget dweight = b.parameter_gradient(name() + ".weight");
    if (dweight.wanted()) {
      ops::ConvDesc weights = desc;
      weights.grad_mode = dweight.mode;
      b.beside([&] {
        const auto plan = plan_conv_pass(b, name() + " backward_weights", weights, ops::ConvPass::backward_weights);
        const SlotId scratch = b.scratch(plan->workspace_bytes());
        b.call(kind() + " backward_weights " + plan->choice(), {dy, x}, {dweight.slot, scratch}, desc.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::conv2d(context, *plan, frame[dy], frame[x], {}, frame[dweight.slot], frame[scratch]);
               });
      });
    }
    if (options_.bias) {
      b.reduce_rows(dy, {shape.numel() / channels_, channels_}, b.parameter_gradient(name() + ".bias"));
    }
    const GradientTarget dx = b.input_gradient(0, {}, false);  // the forward pass of a convolution does not add
    if (dx.wanted()) {
      const auto plan = plan_conv_pass(b, name() + " backward_data", desc, ops::ConvPass::forward);
      const SlotId scratch = b.scratch(plan->workspace_bytes());
      b.call(kind() + " backward_data " + plan->choice(), {dy, weight}, {dx.slot, scratch}, desc.flops(),
             [=](Context& context, const Frame& frame) {
               ops::conv2d(context, *plan, frame[dy], frame[weight], {}, frame[dx.slot], frame[scratch]);
             });
    }
  });
}

}  // namespace lockstep::nn

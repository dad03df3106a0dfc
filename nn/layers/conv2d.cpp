#include <cmath>
#include <memory>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

Conv2dLayer::Conv2dLayer(std::string name, std::int64_t logical_in_channels, std::int64_t channels,
                         const Conv2dOptions& options)
    : Layer(std::move(name)), in_channels_(logical_in_channels), channels_(channels), options_(options) {
  require<ShapeError>(channels >= 1 && options.kernel >= 1 && options.stride >= 1 && options.pad >= 0 &&
                          options.groups >= 1 && options.dilation >= 1,
                      this->name(), ": channels ", channels, ", kernel ", options.kernel, ", stride ", options.stride,
                      ", pad ", options.pad, ", groups ", options.groups, ", dilation ", options.dilation,
                      "; expected positive values and pad >= 0");
  require<ShapeError>(logical_in_channels % options.groups == 0 && channels % options.groups == 0, this->name(),
                      ": groups is ", options.groups, ", expected a divisor of the ", logical_in_channels,
                      " channels that it reads and of the ", channels, " that it makes");
}

namespace {

ops::ConvDesc describe_conv(const Shape& input, std::int64_t channels, const Conv2dOptions& options) {
  ops::ConvDesc desc;
  desc.in_channels = input[2];
  desc.out_channels = channels;
  desc.in_size = {input[0], input[1], 1};
  desc.kernel = {options.kernel, options.kernel, 1};
  desc.stride = {options.stride, options.stride, 1};
  desc.pad_before = {options.pad, options.pad, 0};
  desc.pad_after = desc.pad_before;
  desc.dilation = {options.dilation, options.dilation, 1};
  desc.groups = options.groups;
  return desc;
}

std::shared_ptr<const ops::ConvPlan> plan_pass(PlanBuilder& builder, const std::string& key, const ops::ConvDesc& desc,
                                               ops::ConvPass pass) {
  return builder.planned(
      key, [&](const std::string& choice) { return ops::plan_conv2d(builder.context(), desc, pass, choice); });
}

}  // namespace

Shape Conv2dLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() == 3, name(), ": input ", inputs[0], ", expected (H, W, C)");
  const Shape y = describe_conv(inputs[0], channels_, options_).y_shape();
  return {y[1], y[2], y[3]};
}

std::vector<ParameterSpec> Conv2dLayer::parameters(std::span<const Shape> inputs) const {
  const std::int64_t k = options_.kernel;
  const double fan_out = static_cast<double>(channels_ * k * k);
  const Shape shape{channels_, in_channels_ / options_.groups, k, k};
  std::vector<ParameterSpec> specs;
  specs.push_back({.name = name() + ".weight",
                   .shape = shape,
                   .dims = shape,
                   .axes = {0, 2, 3, 1},
                   .stored_last = inputs[0].back() / options_.groups,
                   .role = ParameterRole::weight,
                   .init = {Initialiser::Kind::normal, std::sqrt(2.0 / fan_out)}});
  if (options_.bias) {
    specs.push_back({.name = name() + ".bias",
                     .shape = {channels_},
                     .dims = {channels_},
                     .axes = {0},
                     .stored_last = channels_,
                     .role = ParameterRole::bias,
                     .init = {}});
  }
  return specs;
}

std::string Conv2dLayer::settings() const {
  std::string text = concat("stride ", options_.stride, ", pad ", options_.pad);
  if (options_.groups != 1) {
    text += concat(", groups ", options_.groups);
  }
  if (options_.dilation != 1) {
    text += concat(", dilation ", options_.dilation);
  }
  return text;
}

void Conv2dLayer::plan(PlanBuilder& builder) const {
  ops::ConvDesc desc = describe_conv(builder.input_shape(), channels_, options_);
  desc.batch = builder.batch();
  desc.dtype = builder.dtype();
  desc.tf32 = builder.options().tf32;

  const SlotId x = builder.input();
  const SlotId weight = builder.weight(name() + ".weight");
  const SlotId bias = options_.bias ? builder.parameter(name() + ".bias") : SlotId{};
  const SlotId y = builder.activation(name(), desc.y_shape());
  {
    ops::ConvDesc forward = desc;
    forward.bias = options_.bias;
    const auto plan = plan_pass(builder, name() + " forward", forward, ops::ConvPass::forward);
    const SlotId scratch = builder.scratch(plan->workspace_bytes());
    builder.call("conv2d forward " + plan->choice(), {x, weight, bias}, {y, scratch}, desc.flops(),
                 [=](Context& context, const Frame& frame) {
                   ops::conv2d(context, *plan, frame[x], frame[weight], frame[bias], frame[y], frame[scratch]);
                 });
  }
  builder.set_output(y);

  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    // The weight gradient first: its bucket can start while the data gradient is computed.
    const GradientTarget dweight = b.parameter_gradient(name() + ".weight");
    ops::ConvDesc pass_desc = desc;
    if (dweight.wanted()) {
      pass_desc.grad_mode = dweight.mode;
      const auto weights_plan = plan_pass(b, name() + " backward_weights", pass_desc, ops::ConvPass::backward_weights);
      const SlotId weights_scratch = b.scratch(weights_plan->workspace_bytes());
      b.call("conv2d backward_weights " + weights_plan->choice(), {x, dy}, {dweight.slot, weights_scratch},
             desc.flops(), [=](Context& context, const Frame& frame) {
               ops::conv2d(context, *weights_plan, frame[x], frame[dy], {}, frame[dweight.slot],
                           frame[weights_scratch]);
             });
    }
    if (options_.bias) {
      const GradientTarget dbias = b.parameter_gradient(name() + ".bias");
      const Shape rows{desc.y_shape().numel() / channels_, channels_};
      b.reduce_rows(dy, rows, dbias);
    }
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      pass_desc.grad_mode = dx.mode;
      const auto data_plan = plan_pass(b, name() + " backward_data", pass_desc, ops::ConvPass::backward_data);
      const SlotId data_scratch = b.scratch(data_plan->workspace_bytes());
      const SlotId before = dx.mode == ops::GradMode::accumulate ? dx.slot : SlotId{};
      b.call("conv2d backward_data " + data_plan->choice(), {dy, weight, before}, {dx.slot, data_scratch}, desc.flops(),
             [=](Context& context, const Frame& frame) {
               ops::conv2d(context, *data_plan, frame[dy], frame[weight], {}, frame[dx.slot], frame[data_scratch]);
             });
    }
  });
}

}  // namespace lockstep::nn

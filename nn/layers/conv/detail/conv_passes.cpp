#include <lockstep/nn/layers/conv/detail/conv_passes.hpp>

#include <cmath>

namespace lockstep::nn {

ops::ConvDesc describe_conv(int axes, const Shape& input, std::int64_t channels, const ConvOptions& options) {
  ops::ConvDesc desc;
  desc.spatial_rank = axes;
  desc.in_channels = input.back();
  desc.out_channels = channels;
  for (int i = 0; i < axes; ++i) {
    const auto u = static_cast<std::size_t>(i);
    desc.in_size[u] = input[i];
    desc.kernel[u] = options.kernel[i];
    desc.stride[u] = options.stride[i];
    desc.pad_before[u] = options.pad[i];
    desc.pad_after[u] = options.pad[i];
    desc.dilation[u] = options.dilation[i];
  }
  desc.groups = options.groups;
  return desc;
}

std::string conv_settings(const ConvOptions& options, const AxisSizes& output_pad) {
  return concat("stride ", options.stride, ", pad ", options.pad,
                output_pad.all(0) ? "" : concat(", output_pad ", output_pad),
                options.groups == 1 ? "" : concat(", groups ", options.groups),
                options.dilation.all(1) ? "" : concat(", dilation ", options.dilation));
}

std::shared_ptr<const ops::ConvPlan> plan_conv_pass(PlanBuilder& builder, const std::string& key,
                                                    const ops::ConvDesc& desc, ops::ConvPass pass) {
  const bool for_norm = builder.options().norms_in_convolutions && ops::conv_may_serve_norm(desc, pass);
  // A pass that also computes the sums of a batch norm stores its choice under its own key, because evaluation and
  // inference plan the pass of this layer without a norm.
  return builder.planned(desc.norm.wanted ? key + " beside a norm" : key, [&](const std::string& choice) {
    return ops::plan_conv2d(builder.context(), desc, pass, for_norm ? "reference:norm" : choice);
  });
}

void append_pass(PlanBuilder& builder, const std::string& call, const std::shared_ptr<const ops::ConvPlan>& plan,
                 SlotId a, SlotId b, SlotId bias, SlotId out, SlotId before) {
  const SlotId scratch = builder.scratch(plan->workspace_bytes());
  builder.call(call + ' ' + plan->choice(), {a, b, bias, before}, {out, scratch}, plan->desc().flops(),
               [=](Context& context, const Frame& frame) {
                 ops::conv2d(context, *plan, frame[a], frame[b], frame[bias], frame[out], frame[scratch]);
               });
}

void append_weight_gradient(PlanBuilder& builder, const Layer& layer, ops::ConvDesc desc, SlotId x, SlotId dy) {
  const GradientTarget dweight = builder.parameter_gradient(layer.name() + ".weight");
  if (dweight.wanted()) {
    desc.grad_mode = dweight.mode;
    builder.beside([&] {
      append_pass(builder, layer.kind() + " backward_weights",
                  plan_conv_pass(builder, layer.name() + " backward_weights", desc, ops::ConvPass::backward_weights), x,
                  dy, {}, dweight.slot);
    });
  }
}

std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first, std::int64_t second,
                                           std::int64_t stored_second, int axes, const AxisSizes& kernel,
                                           std::int64_t channels, bool bias) {
  Shape shape{first, second};
  std::vector<int> order{0};
  double fan_out = static_cast<double>(channels);
  for (int i = 0; i < axes; ++i) {
    shape.push_back(kernel[i]);
    order.push_back(2 + i);
    fan_out *= static_cast<double>(kernel[i]);
  }
  order.push_back(1);
  const Initialiser he{Initialiser::Kind::normal, std::sqrt(2.0 / fan_out)};
  std::vector<ParameterSpec> specs{{name + ".weight", shape, shape, order, stored_second, ParameterRole::weight, he}};
  if (bias) {
    specs.push_back(ParameterSpec::of_channels(name + ".bias", channels, channels, ParameterRole::bias));
  }
  return specs;
}

}  // namespace lockstep::nn

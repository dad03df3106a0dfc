#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/nn/layers/conv_options.hpp>
#include <lockstep/nn/model/layer.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

// What the convolutions and the transposed ones have in common, over `axes` axes of space: 1 to 3.

/// A convolution of a sample, without batch and type.
[[nodiscard]] ops::ConvDesc describe_conv(int axes, const Shape& input, std::int64_t channels,
                                          const ConvOptions& options);

/// Layer::settings() of both kinds.
[[nodiscard]] std::string conv_settings(const ConvOptions& options, const AxisSizes& output_pad = 0);

/// builder.planned() of one pass. key: the layer's name and the pass; a pass that may serve a norm has a key of its
/// own.
[[nodiscard]] std::shared_ptr<const ops::ConvPlan> plan_conv_pass(PlanBuilder& builder, const std::string& key,
                                                                  const ops::ConvDesc& desc, ops::ConvPass pass);

/// Appends a pass: out = plan(a, b) + bias. before: `out`, where the pass adds to it.
void append_pass(PlanBuilder& builder, const std::string& call, const std::shared_ptr<const ops::ConvPlan>& plan,
                 SlotId a, SlotId b, SlotId bias, SlotId out, SlotId before = {});
/// Appends the gradient of the weight of the layer, where it is wanted: of a pass that reads x and dy.
void append_weight_gradient(PlanBuilder& builder, const Layer& layer, ops::ConvDesc desc, SlotId x, SlotId dy);
/// The parameters of both kinds: `first` is the logical first extent of the weight, behind which `second` channels and
/// the kernel's extents follow.
[[nodiscard]] std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first,
                                                         std::int64_t second, std::int64_t stored_second, int axes,
                                                         const AxisSizes& kernel, std::int64_t channels, bool bias);

}  // namespace lockstep::nn

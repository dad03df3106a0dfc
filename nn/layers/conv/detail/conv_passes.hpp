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

// Code that convolutions and transposed convolutions share. `axes` is the number of spatial axes, 1 to 3.

/// Describes the convolution of one sample. The caller sets the batch size and the type.
[[nodiscard]] ops::ConvDesc describe_conv(int axes, const Shape& input, std::int64_t channels,
                                          const ConvOptions& options);

/// Returns the text of Layer::settings() for a convolution or transposed convolution.
[[nodiscard]] std::string conv_settings(const ConvOptions& options, const AxisSizes& output_pad = 0);

/// Plans one pass with builder.planned(). `key` consists of the layer's name and the pass. If the pass includes a norm,
/// the choice is stored under another key.
[[nodiscard]] std::shared_ptr<const ops::ConvPlan> plan_conv_pass(PlanBuilder& builder, const std::string& key,
                                                                  const ops::ConvDesc& desc, ops::ConvPass pass);

/// Appends a pass: out = plan(a, b) + bias. If the pass adds to the old contents of `out`, `before` is `out`. Otherwise
/// `before` is invalid.
void append_pass(PlanBuilder& builder, const std::string& call, const std::shared_ptr<const ops::ConvPlan>& plan,
                 SlotId a, SlotId b, SlotId bias, SlotId out, SlotId before = {});
/// Appends the gradient of the layer's weight, if that gradient is wanted. The pass reads x and dy.
void append_weight_gradient(PlanBuilder& builder, const Layer& layer, ops::ConvDesc desc, SlotId x, SlotId dy);
/// Returns the parameters of a convolution or transposed convolution. The weight's logical shape is (first, second,
/// kernel extents..). `stored_second` is `second` plus the number of padded channels.
[[nodiscard]] std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first,
                                                         std::int64_t second, std::int64_t stored_second, int axes,
                                                         const AxisSizes& kernel, std::int64_t channels, bool bias);

}  // namespace lockstep::nn

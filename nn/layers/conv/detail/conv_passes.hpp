#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/nn/layers/conv_options.hpp>
#include <lockstep/nn/model/layer.hpp>

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

/// The parameters of both kinds: `first` is the logical first extent of the weight, behind which `second` channels and
/// the kernel's extents follow.
[[nodiscard]] std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first,
                                                         std::int64_t second, std::int64_t stored_second, int axes,
                                                         const AxisSizes& kernel, std::int64_t channels, bool bias);

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/nn/layers/axis_sizes.hpp>
#include <lockstep/nn/layers/conv_options.hpp>
#include <lockstep/nn/model/layer.hpp>

namespace lockstep::nn {

// The convolutions among the built-in layers (layers.hpp), over `axes` axes of space: 1 to 3.

/// How errors name a sample with so many axes of space: "(H, W, C)".
[[nodiscard]] const char* sample_text(int axes);

struct NamedSizes {
  const char* name;
  AxisSizes sizes;
};
/// UsageError, naming the layer, unless each option has one number, or one for each axis.
void require_axes(const std::string& layer, int axes, std::initializer_list<NamedSizes> options);

/// builder.planned() of one pass. key: the layer's name and the pass; a pass that may serve a norm has a key of its
/// own.
[[nodiscard]] std::shared_ptr<const ops::ConvPlan> plan_conv_pass(PlanBuilder& builder, const std::string& key,
                                                                  const ops::ConvDesc& desc, ops::ConvPass pass);

/// The parameters of both kinds: `first` is the logical first extent of the weight, behind which `second` channels and
/// the kernel's extents follow.
[[nodiscard]] std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first,
                                                         std::int64_t second, std::int64_t stored_second, int axes,
                                                         const AxisSizes& kernel, std::int64_t channels, bool bias);

/// Weight (K, C / groups, R), (K, C / groups, R, S) or (K, C / groups, Q, R, S), no activation. He initialisation:
/// normal with std sqrt(2 / (K * R * S)) ("fan out"), unless ConvOptions::init says otherwise.
class ConvLayer final : public Layer {
 public:
  ConvLayer(int axes, std::string name, std::int64_t logical_in_channels, std::int64_t channels,
            const ConvOptions& options);
  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  int axes_;
  std::int64_t in_channels_;
  std::int64_t channels_;
  ConvOptions options_;
};

/// The transposed convolution: its output is the gradient that a convolution from its output to its input, with the
/// same weight, has of its input. Weight (C, K / groups, R, S), K being the channels that it makes, as PyTorch's. He
/// initialisation as above.
class ConvTransposeLayer final : public Layer {
 public:
  ConvTransposeLayer(int axes, std::string name, std::int64_t in_channels, std::int64_t channels,
                     const ConvTransposeOptions& options);
  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  /// The convolution whose passes this layer runs in other roles: x of the desc is the layer's output.
  [[nodiscard]] ops::ConvDesc convolution(const Shape& input) const;

  int axes_;
  std::int64_t in_channels_;
  std::int64_t channels_;
  ConvTransposeOptions options_;
};

}  // namespace lockstep::nn

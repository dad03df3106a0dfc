#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/nn/layers/axis_sizes.hpp>
#include <lockstep/nn/layers/conv_options.hpp>
#include <lockstep/nn/layers/layer_options.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

/// Builds a model layer by layer. Each call checks the shapes and returns the new node.
///
/// A sample is an image (H, W, C), a volume (D, H, W, C), features (C), a sequence (T, C) or tokens (T).
///
/// Each built-in layer has a file KIND/NAME.cpp next to this file, with the methods that append the layer. For example,
/// dropout() is in pointwise/dropout.cpp. The layer's class is private to its file.
class ModelBuilder {
 public:
  /// Begins a model whose input is numbers of the shape (D, H, W, C), (H, W, C), (T, C) or (features).
  ModelBuilder(std::string name, const Shape& input);
  /// Begins a model whose input is u8 images (H, W, 3). The plan augments and normalises the images
  /// (PlanOptions::augment).
  [[nodiscard]] static ModelBuilder for_images(std::string name, const Shape& input);
  /// Begins a model whose input is sequences of `length` token ids.
  [[nodiscard]] static ModelBuilder for_tokens(std::string name, std::int64_t length);

  [[nodiscard]] NodeId input() const { return {0}; }
  /// Appends a convolution of (T, C), (H, W, C) or (D, H, W, C). The weight has PyTorch's shape: (channels, C / groups,
  /// kernel extents..). Throws UsageError for ConvInit::identity with several groups.
  NodeId conv1d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(1, name, x, channels, options);
  }
  NodeId conv2d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(2, name, x, channels, options);
  }
  NodeId conv3d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(3, name, x, channels, options);
  }
  /// Appends a transposed convolution (ConvTransposeOptions) of (T, C), (H, W, C) or (D, H, W, C). The weight has
  /// PyTorch's shape: (C, channels / groups, kernel extents..).
  NodeId conv_transpose1d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {}) {
    return add_conv_transpose(1, name, x, channels, options);
  }
  NodeId conv_transpose2d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {}) {
    return add_conv_transpose(2, name, x, channels, options);
  }
  NodeId conv_transpose3d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {}) {
    return add_conv_transpose(3, name, x, channels, options);
  }
  NodeId batch_norm(const std::string& name, NodeId x, const BatchNormOptions& options = {});
  NodeId layer_norm(const std::string& name, NodeId x, double epsilon = 1e-5);
  NodeId relu(const std::string& name, NodeId x);
  NodeId activation(const std::string& name, NodeId x, ops::Activation function);
  /// Returns factor * x. `factor` is a constant that is not trained. Throws UsageError unless `factor` is finite.
  NodeId scale(const std::string& name, NodeId x, double factor);
  /// Appends a max pool over (T, C), (H, W, C) or (D, H, W, C). ConvOptions describes the sizes. Padding is never the
  /// maximum.
  NodeId max_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  NodeId max_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  NodeId max_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  /// Appends an average pool over (H, W, C), (T, C) or (D, H, W, C). `over` says whether the mean includes padding,
  /// which counts as zeros.
  NodeId average_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                      ops::AverageOver over = ops::AverageOver::window);
  NodeId average_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                        ops::AverageOver over = ops::AverageOver::window);
  NodeId average_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                        ops::AverageOver over = ops::AverageOver::window);
  /// Returns the mean of each channel over all spatial axes, a vector (C).
  NodeId global_average_pool(const std::string& name, NodeId x);
  NodeId subsample_pad(const std::string& name, NodeId x, std::int64_t channels, std::int64_t stride);
  /// Appends a fully connected layer. It flattens an image in the order C, H, W, and a volume in the order C, D, H, W.
  /// For a sequence, it maps each position separately.
  NodeId linear(const std::string& name, NodeId x, std::int64_t features, const LinearOptions& options = {});
  /// Maps tokens (T) to vectors (T, width). A vector is the sum of the token's learned vector (NAME.weight) and the
  /// learned vector of the token's position (POSITIONS.weight).
  NodeId embedding(const std::string& name, const std::string& positions, NodeId tokens, std::int64_t vocabulary,
                   std::int64_t width);
  /// Appends multi-head self-attention without parameters (Vaswani et al. 2017, section 3.2). For each position, `qkv`
  /// (T, 3 C) holds the queries, then the keys, then the values, each divided into `heads` parts. Returns (T, C).
  NodeId attention(const std::string& name, NodeId qkv, const AttentionOptions& options);
  /// Returns a + b for two tensors of equal shape. A residual branch ends with this layer.
  NodeId add(const std::string& name, NodeId a, NodeId b);
  /// In training, sets each element to 0 with probability `rate`, else divides it by 1 - rate (Srivastava et al. 2014).
  NodeId dropout(const std::string& name, NodeId x, double rate);
  /// Appends a layer of the caller. Throws ShapeError if an input has padded channels, because the layer would take
  /// padded channels for real ones. An input of three channels is stored with four, until a layer such as a convolution
  /// computes new channels.
  NodeId add(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);

  /// Freezes parameters of the layers added so far, as Model::freezing() does. If all parameters are frozen, build()
  /// throws.
  void freeze(const std::string& prefix);

  /// Returns the model whose output is the node added last, and empties the builder. Throws ShapeError if that output
  /// has padded channels. This happens if the input has three channels and no layer computes new channels.
  [[nodiscard]] Model build();
  [[nodiscard]] const Shape& shape(NodeId node) const;

 private:
  [[nodiscard]] std::int64_t channels(NodeId node) const;
  /// Throws ShapeError if `x` has padded channels. Layers call this function if padded channels would change their
  /// result.
  void require_all_channels(const std::string& name, NodeId x) const;
  ModelBuilder(std::string name, const Shape& input, InputKind kind);
  /// Appends a layer that accepts inputs with padded channels.
  NodeId add_stored(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);
  /// Appends a layer whose output is zero in padded channels. The output has as many logical channels as the inputs.
  NodeId add_channelwise(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);
  NodeId add_conv(int axes, const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options);
  NodeId add_conv_transpose(int axes, const std::string& name, NodeId x, std::int64_t channels,
                            const ConvTransposeOptions& options);
  Model model_;
};

}  // namespace lockstep::nn

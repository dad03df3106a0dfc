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

/// Appends layers one by one; each call checks the shapes and returns the new node.
///
/// A sample is an image (H, W, C), a field (D, H, W, C), features (C), or a sequence (T, C) of positions, which begins
/// with tokens (T).
///
/// A built-in layer and the methods that append it are in KIND/NAME.cpp beside this file: dropout() in
/// pointwise/dropout.cpp. Nobody else sees the layer's class.
class ModelBuilder {
 public:
  /// Of a model that reads numbers: (D, H, W, C), (H, W, C), (T, C) or (features).
  ModelBuilder(std::string name, const Shape& input);
  /// Of a model that reads u8 images (H, W, 3), which are augmented and normalised on the way in
  /// (PlanOptions::augment).
  [[nodiscard]] static ModelBuilder for_images(std::string name, const Shape& input);
  /// Of a model that reads sequences of `length` token ids.
  [[nodiscard]] static ModelBuilder for_tokens(std::string name, std::int64_t length);

  [[nodiscard]] NodeId input() const { return {0}; }
  /// On (T, C), (H, W, C) and (D, H, W, C). The weight is PyTorch's: (channels, C / groups, kernel...). UsageError for
  /// ConvInit::identity beside several groups.
  NodeId conv1d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(1, name, x, channels, options);
  }
  NodeId conv2d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(2, name, x, channels, options);
  }
  NodeId conv3d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {}) {
    return add_conv(3, name, x, channels, options);
  }
  /// The way back to a finer grid. The weight is PyTorch's: (C, channels / groups, kernel...).
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
  /// factor * x: a constant, which does not train. UsageError unless it is finite.
  NodeId scale(const std::string& name, NodeId x, double factor);
  /// Over (H, W, C), (T, C) and (D, H, W, C); sizes as of a convolution. Padding never wins.
  NodeId max_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  NodeId max_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  NodeId max_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad);
  /// `over`: whether padding counts, as zeros.
  NodeId average_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                      ops::AverageOver over = ops::AverageOver::window);
  NodeId average_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                        ops::AverageOver over = ops::AverageOver::window);
  NodeId average_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                        ops::AverageOver over = ops::AverageOver::window);
  /// The mean of each channel over all axes of space: (C).
  NodeId global_average_pool(const std::string& name, NodeId x);
  NodeId subsample_pad(const std::string& name, NodeId x, std::int64_t channels, std::int64_t stride);
  /// Fully connected: on an image flattened in the order C, H, W, a field in C, D, H, W; on each position of a sequence
  /// by itself.
  NodeId linear(const std::string& name, NodeId x, std::int64_t features, const LinearOptions& options = {});
  /// Tokens (T) to vectors (T, width), plus a learned vector of the position (NAME.weight, POSITIONS.weight).
  NodeId embedding(const std::string& name, const std::string& positions, NodeId tokens, std::int64_t vocabulary,
                   std::int64_t width);
  /// Multi-head attention (Vaswani et al. 2017, section 3.2) of a sequence to itself; without parameters. qkv:
  /// (T, 3 C), queries, keys and values one behind the other, each of `heads` parts. Gives (T, C).
  NodeId attention(const std::string& name, NodeId qkv, const AttentionOptions& options);
  /// a + b, of one shape: the end of a residual branch.
  NodeId add(const std::string& name, NodeId a, NodeId b);
  /// In training each element is zero with probability `rate`, else divided by 1 - rate (Srivastava et al. 2014).
  NodeId dropout(const std::string& name, NodeId x, double rate);
  /// A layer of the caller's own. ShapeError where an input has padded channels, which the layer would take for real
  /// ones: three channels are stored as four until a layer makes channels of its own (a convolution, say).
  NodeId add(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);

  /// Freezes parameters of the layers that are there already, as Model::freezing() does; build() refuses a model of
  /// which nothing trains.
  void freeze(const std::string& prefix);

  /// The model whose output is the node added last. The builder is empty afterwards. ShapeError when that output has
  /// padded channels: it follows an input of three channels, and no layer has made channels of its own.
  [[nodiscard]] Model build();
  [[nodiscard]] const Shape& shape(NodeId node) const;

 private:
  [[nodiscard]] std::int64_t channels(NodeId node) const;
  /// ShapeError when channels of x are padding, for a layer that would not leave them alone.
  void require_all_channels(const std::string& name, NodeId x) const;
  ModelBuilder(std::string name, const Shape& input, InputKind kind);
  /// For a layer that leaves channels that are zero in its input zero.
  NodeId add_stored(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);
  NodeId add_channelwise(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs);
  NodeId add_conv(int axes, const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options);
  NodeId add_conv_transpose(int axes, const std::string& name, NodeId x, std::int64_t channels,
                            const ConvTransposeOptions& options);
  Model model_;
};

}  // namespace lockstep::nn

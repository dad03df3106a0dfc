#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/nn/model/axis_sizes.hpp>
#include <lockstep/nn/model/conv_options.hpp>
#include <lockstep/nn/model/layer.hpp>
#include <lockstep/nn/step/step_state.hpp>

namespace lockstep::nn {

/// The output of a layer, or the input of the model: an index into Model::nodes().
struct NodeId {
  int index = -1;
  friend bool operator==(const NodeId&, const NodeId&) = default;
};

struct Node {
  std::shared_ptr<const Layer> layer;  ///< null for the input
  std::vector<NodeId> inputs;          ///< all earlier nodes
  Shape shape;                         ///< one sample as stored, channels last
  std::int64_t channels = 0;           ///< of the last axis; those that are stored beyond them are zero
};

/// What a parameter begins with instead of what ParameterSpec::init draws, or in a part of it.
struct Beginning {
  bool identity = false;                                ///< the first filters are the identity, ConvInit::identity
  std::shared_ptr<const std::vector<double>> values{};  ///< all of it, in the order of `dims`; null: not given
};

/// An immutable graph of layers from one input to one output. Knows no device, batch size or dtype; made by a
/// ModelBuilder, shared freely.
class Model {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] NodeId output() const { return {static_cast<int>(nodes_.size()) - 1}; }
  /// Logical: (D, H, W, C), (H, W, C), (T, C), (features), or (T) when the model reads tokens.
  [[nodiscard]] const Shape& input_shape() const { return input_shape_; }
  [[nodiscard]] InputKind input_kind() const { return input_kind_; }
  /// The same model on input that comes in another form: images (H, W, 3) as u8 or as numbers. UsageError otherwise.
  [[nodiscard]] Model reading(InputKind kind) const;
  [[nodiscard]] const Shape& output_shape() const { return nodes_.back().shape; }
  [[nodiscard]] std::int64_t classes() const { return output_shape().back(); }
  /// Learned values, counted by logical shape; a tied parameter counts once.
  [[nodiscard]] std::int64_t parameter_count() const;

  /// A parameter of the model with the number of writes that its gradient gets per step (tied: more than one).
  struct Parameter {
    ParameterSpec spec;
    int writes = 1;
    Beginning beginning{};
  };
  /// In the order in which their gradients become ready: layers from last to first, a layer's own in its order; a tied
  /// parameter stands where its last write is. Frozen ones come behind the others, in the same order.
  /// ShapeError when a tied parameter has two shapes, and for more than 2^56 values in all; build() calls it, too.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// The same model with the parameters frozen that are called `prefix` or begin with `prefix` and a dot ("layer1",
  /// "conv1.weight"): ParameterSpec::trainable is false. Of a frozen parameter no gradient is computed, reduced or
  /// stored, and the optimizer leaves its bits alone; backward ends at the first layer that trains. Running statistics
  /// go on following the batches. UsageError when there is no such parameter, or when none would train any more.
  [[nodiscard]] Model freezing(const std::string& prefix) const;
  /// The same model with a parameter that begins with these values, as when they were computed from data: in the order
  /// of the logical shape. A checkpoint that is read has its own. UsageError when there is no such parameter, for
  /// another number of values than it has, and for one that is not finite.
  [[nodiscard]] Model beginning_with(const std::string& parameter, std::vector<double> values) const;
  [[nodiscard]] std::vector<BufferSpec> buffers() const;  ///< in the order of the layers
  /// Kind, inputs and settings of each layer by its name, "conv2d of input: stride 2, pad 1". Models with equal
  /// parameters and equal texts compute the same function. A name that several layers have is numbered from the second
  /// on, "relu (2)".
  [[nodiscard]] std::map<std::string, std::string> layer_texts() const;

 private:
  friend class ModelBuilder;
  void freeze(const std::string& prefix);
  void require_training() const;
  std::string name_;
  Shape input_shape_;
  InputKind input_kind_ = InputKind::values;
  std::vector<Node> nodes_;
  std::vector<std::string> frozen_;              ///< names of parameters
  std::map<std::string, Beginning> beginnings_;  ///< by the names of parameters
};

struct BatchNormOptions {
  bool relu = false;
  NodeId residual{};  ///< added before the ReLU when given
  double epsilon = 1e-5;
  double momentum = 0.1;      ///< weight of the new batch in the running statistics
  double initial_weight = 1;  ///< 0: the block starts as the identity (Goyal et al. 2017, section 5.1)
  /// The running statistics begin with these, one number a channel, as when they were computed from data; empty: 0
  /// and 1.
  std::vector<double> running_mean{};
  std::vector<double> running_var{};
};

struct LinearOptions {
  /// The weight begins normal with the deviation of He et al. 2015 for ReLU nets, or with `deviation` where that is
  /// above 0, and the bias zero; else both begin uniform in 1 / sqrt(fan in), as PyTorch's do.
  bool he_init = false;
  double deviation = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::identity;  ///< in the same pass as bias and residual
  NodeId residual{};                                       ///< added behind the activation when given
  /// The name of the weight when it is not "NAME.weight": that of another layer's ties the two.
  std::string weight = {};
};

struct AttentionOptions {
  std::int64_t heads = 1;
  bool causal = false;  ///< a position attends to itself and to those before it
};

/// Appends layers one by one; each call checks the shapes and returns the new node.
///
/// A sample is an image (H, W, C), a field (D, H, W, C), features (C), or a sequence (T, C) of positions, which begins
/// with tokens (T).
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
  NodeId conv1d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {});
  NodeId conv2d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {});
  NodeId conv3d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options = {});
  /// The way back to a finer grid. The weight is PyTorch's: (C, channels / groups, kernel...).
  NodeId conv_transpose1d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {});
  NodeId conv_transpose2d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {});
  NodeId conv_transpose3d(const std::string& name, NodeId x, std::int64_t channels,
                          const ConvTransposeOptions& options = {});
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

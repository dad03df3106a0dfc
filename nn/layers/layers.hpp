#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/nn/layers/axis_sizes.hpp>
#include <lockstep/nn/layers/layer_options.hpp>
#include <lockstep/nn/model/layer.hpp>

namespace lockstep::nn {

struct SlotId;  // plan.hpp

// The built-in layers; convolutions are in conv.hpp. Users reach them through ModelBuilder.

/// Batch norm over all but the last axis, then the residual (second input) and the ReLU.
class BatchNormLayer final : public Layer {
 public:
  BatchNormLayer(std::string name, std::int64_t logical_channels, const BatchNormOptions& options)
      : Layer(std::move(name)), channels_(logical_channels), options_(options) {}
  [[nodiscard]] std::string kind() const override { return "batch_norm"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<BufferSpec> buffers(std::span<const Shape> inputs) const override;
  [[nodiscard]] int gradients_taken() const override { return 2; }
  [[nodiscard]] bool takes_norm(int i, bool relu) const override { return i == 1 && !relu; }
  [[nodiscard]] std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  std::int64_t channels_;
  BatchNormOptions options_;
};

/// Layer norm over the last axis: for images over the channels of each pixel.
class LayerNormLayer final : public Layer {
 public:
  LayerNormLayer(std::string name, double epsilon) : Layer(std::move(name)), epsilon_(epsilon) {}
  [[nodiscard]] std::string kind() const override { return "layer_norm"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  double epsilon_;
};

class ReluLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "relu"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  void plan(PlanBuilder& builder) const override;
};

/// One of the functions of kernels/activation.hpp.
class ActivationLayer final : public Layer {
 public:
  ActivationLayer(std::string name, ops::Activation function);
  [[nodiscard]] std::string kind() const override { return std::string(ops::name_of(function_)); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  ops::Activation function_;
};

/// A constant times its input.
class ScaleLayer final : public Layer {
 public:
  ScaleLayer(std::string name, double factor);
  [[nodiscard]] std::string kind() const override { return "scale"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  double factor_;
};

struct PoolWindow {
  AxisSizes kernel, stride, pad;
};

/// Pools over `axes` axes of space, 1 to 3.
class MaxPoolLayer final : public Layer {
 public:
  MaxPoolLayer(int axes, std::string name, const PoolWindow& window);
  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool takes_norm(int i, bool relu) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  int axes_;
  PoolWindow window_;
};

class AveragePoolLayer final : public Layer {
 public:
  AveragePoolLayer(int axes, std::string name, const PoolWindow& window, ops::AverageOver over);
  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  int axes_;
  PoolWindow window_;
  ops::AverageOver over_;
};

/// The mean over all axes of space: (T, C), (H, W, C) or (D, H, W, C) -> (C)
class GlobalAveragePoolLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "global_average_pool"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;
};

/// The shortcut without parameters (option A of He et al. 2015).
class SubsamplePadLayer final : public Layer {
 public:
  SubsamplePadLayer(std::string name, std::int64_t channels, std::int64_t stride);
  [[nodiscard]] std::string kind() const override { return "subsample_pad"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  std::int64_t channels_;
  std::int64_t stride_;
};

/// (T, C) + (T, C) and the like: the end of a residual branch. Both inputs have the gradient of the output.
class AddLayer final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "add"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;
};

/// Zeros of probability `rate` in training, keyed by (PlanOptions::dropout_seed, epoch, `number`, sample id); nothing
/// in evaluation.
class DropoutLayer final : public Layer {
 public:
  DropoutLayer(std::string name, double rate, std::uint32_t number);
  [[nodiscard]] std::string kind() const override { return "dropout"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  double rate_;
  std::uint32_t number_;
};

/// Tokens (T) -> (T, width): NAME.weight (vocabulary, width) at the token, plus POSITIONS.weight (T, width). Both begin
/// normal with a standard deviation of 0.02 (Radford et al. 2018, section 4.1).
class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(std::string name, std::string positions, std::int64_t vocabulary, std::int64_t width);
  [[nodiscard]] std::string kind() const override { return "embedding"; }
  [[nodiscard]] bool reads_tokens() const override { return true; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  std::string positions_;
  std::int64_t vocabulary_;
  std::int64_t width_;
};

/// (T, 3 C) -> (T, C): softmax(q k^T / sqrt(D)) v for each of the heads of D = C / heads columns.
class AttentionLayer final : public Layer {
 public:
  AttentionLayer(std::string name, const AttentionOptions& options);
  [[nodiscard]] std::string kind() const override { return "attention"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  AttentionOptions options_;
};

/// y (K) = activation(weight (K, features) x + bias (K)) + residual (second input) of a flattened image, of features,
/// or of each position of a sequence. The features of an image are counted in C, H, W order, as a PyTorch model that
/// flattens an image counts them.
class LinearLayer final : public Layer {
 public:
  /// logical: shape of one input sample without channel padding.
  LinearLayer(std::string name, const Shape& logical, std::int64_t features, LinearOptions options);
  [[nodiscard]] std::string kind() const override { return "linear"; }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return slope_of_output(); }
  void plan(PlanBuilder& builder) const override;

 private:
  [[nodiscard]] bool sequence() const { return logical_.rank() == 2; }
  [[nodiscard]] std::string weight_name() const;
  [[nodiscard]] bool activates() const { return options_.activation != ops::Activation::identity; }
  /// Backward takes the slope of the activation from the output, so that the product is not kept.
  [[nodiscard]] bool slope_of_output() const {
    return options_.activation == ops::Activation::relu && options_.residual.index < 0;
  }
  /// The product and what follows it in forward, in one call where ops::fuses_activation() says so; gives what
  /// backward takes the slope of the activation from: the output, or else the product before the bias was added.
  SlotId plan_forward(PlanBuilder& builder, std::int64_t rows, std::int64_t in) const;

  Shape logical_;
  std::int64_t features_;
  LinearOptions options_;
};

}  // namespace lockstep::nn

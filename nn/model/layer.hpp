#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/tensor/shape.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

class PlanBuilder;

/// Role of a parameter in its layer, which decides its weight decay (ParameterSetOptions::decay_all, ParameterGroups).
enum class ParameterRole : unsigned char { weight, bias, norm_weight, norm_bias };

/// Initial value of a parameter. Numbers are drawn in the order of the logical shape, keyed by (seed, name). So they
/// depend neither on the storage layout nor on the rank.
struct Initialiser {
  enum class Kind : unsigned char { constant, normal, uniform } kind = Kind::constant;
  double value = 0;  ///< constant, standard deviation, or bound b of uniform [-b, b)
};

/// A learned tensor of a layer. Files and parameter counts use the logical shape; kernels use the stored shape.
///
/// `dims` is the logical shape with every axis separate: a linear layer on an image has dims (K, C, H, W) and shape (K,
/// C * H * W). Stored axis i is dims[axes[i]]; zeros pad the last stored axis to `stored_last`. A convolution has dims
/// (K, C, R, S) and axes (0, 2, 3, 1). It is stored as (K, R, S, C); 3 input channels are stored as 4.
struct ParameterSpec {
  std::string name;  ///< name like "layer1.0.conv1.weight"; equal names in two layers mean one tied parameter
  Shape shape;
  Shape dims;
  std::vector<int> axes;
  std::int64_t stored_last = 0;
  ParameterRole role = ParameterRole::weight;
  Initialiser init;
  /// false: the parameter is frozen (Model::freezing()). It has no gradient and no optimizer state; no update changes
  /// it.
  bool trainable = true;
  bool embedding_table = false;  ///< true for an embedding table, whose rows are selected by token id
  bool last = false;  ///< true: the parameter is in the last layer with parameters; set by Model::parameters()

  [[nodiscard]] Shape stored_shape() const;
  /// Makes a parameter with one number per channel. `stored` is the number of channels in memory, padding included.
  [[nodiscard]] static ParameterSpec of_channels(std::string name, std::int64_t channels, std::int64_t stored,
                                                 ParameterRole role, const Initialiser& init = {}) {
    return {std::move(name), {channels}, {channels}, {0}, stored, role, init};
  }
};

/// A tensor of a layer that is not learned (running statistics), of the type of the parameters' gradients. It is stored
/// contiguously, with the last axis padded to `stored_last`.
struct BufferSpec {
  std::string name;
  Shape shape;  ///< logical shape
  double initial = 0;
  std::int64_t stored_last = 0;
  std::vector<double> values{};  ///< initial values, row by row of `shape`; empty: all are `initial`

  [[nodiscard]] Shape stored_shape() const;
};

/// Immutable description of one operation of a model: its shapes, its parameters, and the calls that it adds to a plan.
/// It owns no tensor, so any number of plans may use one Layer. Shapes here have no batch dimension; tensors in a plan
/// do.
class Layer {
 public:
  virtual ~Layer() = default;
  explicit Layer(std::string name) : name_(std::move(name)) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string kind() const = 0;  ///< kind of the layer: "conv2d", "batch_norm", ...
  /// Returns the text of all settings that decide the layer's numbers, except the shapes of its inputs and parameters:
  /// "stride 2, pad 1". The text is empty if there are none. Checkpoints keep the text, and a resume names the layers
  /// whose settings have changed.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Returns the shape of an output sample, channels last. Throws ShapeError with the layer's name if the inputs do not
  /// fit.
  [[nodiscard]] virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  [[nodiscard]] virtual std::vector<BufferSpec> buffers(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  /// True for a layer whose input consists of token ids (T) instead of numbers.
  [[nodiscard]] virtual bool reads_tokens() const { return false; }
  /// Returns the number of separate gradients of its output that the layer's backward accepts. The plan adds
  /// further gradients to the last of these.
  [[nodiscard]] virtual int gradients_taken() const { return 1; }
  /// True if the layer can apply a batch norm to its i-th input itself, from the norm's input and coefficients. The
  /// plan then does not store the norm's output (PlanBuilder::fuses()). `relu` tells whether a ReLU follows the norm.
  [[nodiscard]] virtual bool takes_norm(int i, bool relu) const {
    (void)i;
    (void)relu;
    return false;
  }
  /// Returns a non-empty text if the layer that computes this layer's input should also compute sums over the input's
  /// channels (ConvNorm in kernels/conv2d.hpp). The text names the buffer of this layer that estimates each channel's
  /// mean; the sums are of the deviations from this estimate. `input` has type and shape, but no memory.
  [[nodiscard]] virtual std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const {
    (void)builder;
    (void)input;
    return {};
  }
  /// False if backward never reads the layer's output; the next layer may then overwrite the output.
  [[nodiscard]] virtual bool backward_reads_output() const { return true; }
  /// Appends the forward calls to the plan, and registers a function that appends the backward calls
  /// (PlanBuilder::on_backward()). Each plan calls it once per layer, in the order of the model.
  virtual void plan(PlanBuilder& builder) const = 0;

 private:
  std::string name_;
};

}  // namespace lockstep::nn

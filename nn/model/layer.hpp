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

/// Initial value of a parameter. Numbers are drawn in the order of the logical shape, keyed by (seed, name), so they
/// depend neither on the storage layout nor on the rank.
struct Initialiser {
  enum class Kind : unsigned char { constant, normal, uniform } kind = Kind::constant;
  double value = 0;  ///< the constant, the standard deviation, or the bound b of uniform [-b, b)
};

/// A learned tensor of a layer. Files and counts use the logical shape, kernels the stored one.
///
/// `dims` is the logical shape with every axis separate: a linear layer on an image has dims (K, C, H, W) and shape
/// (K, C * H * W). Stored axis i is dims[axes[i]], and the last stored axis is padded with zeros to `stored_last`.
/// A convolution has dims (K, C, R, S) and axes (0, 2, 3, 1); it is stored as (K, R, S, C), 3 input channels as 4.
struct ParameterSpec {
  std::string name;  ///< "layer1.0.conv1.weight"; equal names in two layers mean one tied parameter
  Shape shape;
  Shape dims;
  std::vector<int> axes;
  std::int64_t stored_last = 0;
  ParameterRole role = ParameterRole::weight;
  Initialiser init;
  /// false: frozen (Model::freezing()). The parameter has no gradient and no optimizer state, and no update changes it.
  bool trainable = true;
  bool embedding_table = false;  ///< true for an embedding table, whose rows are selected by token id
  bool last = false;  ///< parameter belongs to the last layer that has parameters; Model::parameters() sets this

  [[nodiscard]] Shape stored_shape() const;
  /// Makes a parameter with one number per channel. stored: number of channels in memory, padding included.
  [[nodiscard]] static ParameterSpec of_channels(std::string name, std::int64_t channels, std::int64_t stored,
                                                 ParameterRole role, const Initialiser& init = {}) {
    return {std::move(name), {channels}, {channels}, {0}, stored, role, init};
  }
};

/// A tensor of a layer that is not learned (running statistics), in the type of the parameters' gradients. Stored
/// contiguously, with the last axis padded to `stored_last`.
struct BufferSpec {
  std::string name;
  Shape shape;  ///< logical shape
  double initial = 0;
  std::int64_t stored_last = 0;
  std::vector<double> values{};  ///< initial values, row by row of `shape`; empty: `initial` everywhere

  [[nodiscard]] Shape stored_shape() const;
};

/// Immutable description of one operation of a model: its shapes, its parameters, and the calls that it adds to a plan.
/// Owns no tensor; any number of plans may use one Layer. Shapes have no batch dimension here; tensors in a plan do.
class Layer {
 public:
  virtual ~Layer() = default;
  explicit Layer(std::string name) : name_(std::move(name)) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string kind() const = 0;  ///< "conv2d", "batch_norm", ...
  /// Text of all settings that decide the layer's numbers, except the shapes of its inputs and parameters: "stride 2,
  /// pad 1"; empty: there are none. Checkpoints keep the text, and a resume names the layers whose settings have
  /// changed.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Shape of one output sample, channels last. Throws ShapeError, which names the layer, when the inputs do not fit.
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
  /// Number of separate gradients of its output that the layer's backward accepts. The plan adds up any more before.
  [[nodiscard]] virtual int gradients_taken() const { return 1; }
  /// True if the layer can compute the output of a batch norm itself, from the norm's input and coefficients, when that
  /// output is the layer's i-th input. The plan then does not store the output (PlanBuilder::fuses()). relu: a ReLU
  /// follows the norm.
  [[nodiscard]] virtual bool takes_norm(int i, bool relu) const {
    (void)i;
    (void)relu;
    return false;
  }
  /// Non-empty if the layer wants the sums over its input's channels from the layer that computes the input (ConvNorm
  /// in kernels/conv2d.hpp). The result then names the buffer of this layer with an estimate of each channel's mean;
  /// sums are taken of the deviations from it. input: type and shape, without memory.
  [[nodiscard]] virtual std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const {
    (void)builder;
    (void)input;
    return {};
  }
  /// False if backward never reads the layer's output. The next layer may then overwrite the output.
  [[nodiscard]] virtual bool backward_reads_output() const { return true; }
  /// Appends the forward calls to the plan, and registers a function that appends the backward calls
  /// (PlanBuilder::on_backward()). Called once per plan, in the order of the model.
  virtual void plan(PlanBuilder& builder) const = 0;

 private:
  std::string name_;
};

}  // namespace lockstep::nn

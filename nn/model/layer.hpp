#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/tensor/shape.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

class PlanBuilder;

/// Role of a parameter in its layer. The weight decay depends on the role (ParameterSetOptions::decay_all,
/// ParameterGroups).
enum class ParameterRole : unsigned char { weight, bias, norm_weight, norm_bias };

/// Initial value of a parameter. Random numbers depend only on the seed, the parameter's name, and the element's index
/// in the logical shape. So they are the same for every storage layout and on every rank.
struct Initialiser {
  enum class Kind : unsigned char { constant, normal, uniform } kind = Kind::constant;
  double value = 0;  ///< constant, standard deviation, or bound b of uniform [-b, b)
};

/// A learned tensor of a layer. Files and parameter counts use the logical shape; kernels use the stored shape.
///
/// `dims` is the logical shape with every axis separate: a linear layer on an image has dims (K, C, H, W) and shape (K,
/// C * H * W). Axis i of the stored shape has extent dims[axes[i]], except that zeros pad the last axis to extent
/// `stored_last`. A convolution has dims (K, C, R, S) and axes (0, 2, 3, 1). Such a weight is stored as (K, R, S, C),
/// with 3 input channels padded to 4.
struct ParameterSpec {
  std::string name;  ///< name like "layer1.0.conv1.weight"; layers that give a parameter the same name share it
  Shape shape;
  Shape dims;
  std::vector<int> axes;
  std::int64_t stored_last = 0;
  ParameterRole role = ParameterRole::weight;
  Initialiser init;
  /// False if the parameter is frozen (Model::freezing()). A frozen parameter has no gradient and no optimizer state,
  /// and no update changes it.
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

/// A tensor of a layer that is not learned, such as running statistics. The tensor has the type of the gradients. The
/// tensor is stored contiguously, with the last axis padded to `stored_last`.
struct BufferSpec {
  std::string name;
  Shape shape;  ///< logical shape
  double initial = 0;
  std::int64_t stored_last = 0;
  std::vector<double> values{};  ///< initial values in the order of `shape`; empty: all are `initial`

  [[nodiscard]] Shape stored_shape() const;
};

/// The function that inference computes for a layer with one input: activation(weight x + bias) for a vector x. Without
/// a weight, the function is activation(x) for each element x.
struct DenseForm {
  std::string weight{};  ///< name of the weight, of shape (outputs, inputs); empty: no weight
  std::string bias{};    ///< name of the bias, of shape (outputs); empty: no bias
  ops::Activation activation = ops::Activation::identity;
};

/// Immutable description of one operation of a model: its shapes, its parameters, and the calls that it adds to a plan.
/// A layer owns no tensor. Any number of plans may use one Layer. Shapes in this class have no batch dimension, but the
/// tensors of a plan have one.
class Layer {
 public:
  virtual ~Layer() = default;
  explicit Layer(std::string name) : name_(std::move(name)) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string kind() const = 0;  ///< kind of the layer: "conv2d", "batch_norm", ...
  /// Returns a text of all settings that change the results of the layer, like "stride 2, pad 1". Shapes of inputs and
  /// parameters are not included. The text is empty if there are no such settings. Checkpoints contain the text. When a
  /// run resumes from a checkpoint, an error names the layers whose settings differ.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Returns the shape of an output sample, channels last. Throws ShapeError with the layer's name if the layer does
  /// not accept inputs of the shapes `inputs`.
  [[nodiscard]] virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  [[nodiscard]] virtual std::vector<BufferSpec> buffers(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  /// Returns true for a layer whose input is token ids (T) instead of numbers.
  [[nodiscard]] virtual bool reads_tokens() const { return false; }
  /// Returns the largest number of gradients of the output that the layer's backward accepts as separate inputs. Each
  /// layer that reads the output gives one gradient. If there are more gradients, the plan adds the surplus ones to the
  /// last accepted gradient.
  [[nodiscard]] virtual int gradients_taken() const { return 1; }
  /// Returns true if the layer can apply a batch norm to its i-th input itself. The layer then reads the norm's input
  /// and coefficients, and the plan may leave out the norm's output (PlanBuilder::may_leave_norm_unapplied()). `relu`
  /// is true if a ReLU follows the norm.
  [[nodiscard]] virtual bool takes_norm(int i, bool relu) const {
    (void)i;
    (void)relu;
    return false;
  }
  /// Asks whether the layer can use channel sums of its input that the previous layer computes (ConvNorm in
  /// kernels/conv2d.hpp). If so, returns the name of this layer's buffer that estimates each channel's mean. The
  /// previous layer sums deviations from this estimate. Otherwise returns an empty text. `input` has type and shape,
  /// but no memory.
  [[nodiscard]] virtual std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const {
    (void)builder;
    (void)input;
    return {};
  }
  /// Returns false if backward never reads the layer's output; the next layer may then overwrite the output.
  [[nodiscard]] virtual bool backward_reads_output() const { return true; }
  /// Returns the layer's function in inference as a DenseForm, or no value if a DenseForm cannot describe it. Inference
  /// computes a chain of layers with DenseForms in one pass.
  [[nodiscard]] virtual std::optional<DenseForm> dense_form() const { return std::nullopt; }
  /// Appends the forward calls to the plan, and registers a function that appends the backward calls
  /// (PlanBuilder::on_backward()). Each plan calls plan() once per layer, in the order of the model.
  virtual void plan(PlanBuilder& builder) const = 0;

 private:
  std::string name_;
};

}  // namespace lockstep::nn

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

/// What a parameter is to its layer: decides which group it belongs to (see ParameterSetOptions::decay_all).
enum class ParameterRole : unsigned char { weight, bias, norm_weight, norm_bias };

/// How a parameter begins. Numbers are drawn in the order of the logical shape, keyed by (seed, name), so they depend
/// on neither storage layout nor rank.
struct Initialiser {
  enum class Kind : unsigned char { constant, normal, uniform } kind = Kind::constant;
  double value = 0;  ///< the constant, the standard deviation, or the bound b of uniform [-b, b)
};

/// A learned tensor of a layer. Files and counts use the logical shape, kernels the stored one.
///
/// `dims` is the logical shape with every axis named separately (a linear layer on an image: (K, C, H, W), shape
/// (K, C * H * W)); stored axis i is dims[axes[i]], and the last stored axis is padded with zeros to `stored_last`.
/// Convolution: dims (K, C, R, S), axes (0, 2, 3, 1): stored (K, R, S, C), 3 input channels stored as 4.
struct ParameterSpec {
  std::string name;  ///< "layer1.0.conv1.weight"; equal names in two layers are one, tied parameter
  Shape shape;
  Shape dims;
  std::vector<int> axes;
  std::int64_t stored_last = 0;
  ParameterRole role = ParameterRole::weight;
  Initialiser init;
  /// false: frozen (Model::freezing()). It has no gradient and no optimizer state, and no update changes it.
  bool trainable = true;
  bool embedding_table = false;  ///< its rows are looked up by number, as an embedding's
  bool last = false;             ///< it belongs to the last layer that has parameters; Model::parameters() says so

  [[nodiscard]] Shape stored_shape() const;
  /// A number for each of so many channels, of which `stored` are stored.
  [[nodiscard]] static ParameterSpec of_channels(std::string name, std::int64_t channels, std::int64_t stored,
                                                 ParameterRole role, const Initialiser& init = {}) {
    return {std::move(name), {channels}, {channels}, {0}, stored, role, init};
  }
};

/// State of a layer that is not learned (running statistics), in the type of the parameters' gradients. Stored
/// contiguously, the last axis padded to `stored_last`.
struct BufferSpec {
  std::string name;
  Shape shape;  ///< logical
  double initial = 0;
  std::int64_t stored_last = 0;
  std::vector<double> values{};  ///< it begins with these, row by row of `shape`; empty: with `initial` everywhere

  [[nodiscard]] Shape stored_shape() const;
};

/// The immutable description of one step of a model: shapes, parameters, and how to plan it. Owns no tensor; one
/// Layer serves any number of plans. Shapes have no batch dimension here; tensors in a plan do.
class Layer {
 public:
  virtual ~Layer() = default;
  explicit Layer(std::string name) : name_(std::move(name)) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string kind() const = 0;  ///< "conv2d", "batch_norm", ...
  /// What decides the layer's numbers beside the shapes of its inputs and parameters: "stride 2, pad 1"; empty:
  /// nothing. Checkpoints keep it, and a resume names the layers whose settings have changed.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Shape of one output sample, channels last. ShapeError, naming the layer, when the inputs do not fit.
  [[nodiscard]] virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  [[nodiscard]] virtual std::vector<BufferSpec> buffers(std::span<const Shape> inputs) const {
    (void)inputs;
    return {};
  }
  /// True for a layer whose input are token ids (T) instead of numbers.
  [[nodiscard]] virtual bool reads_tokens() const { return false; }
  /// How many separate gradients of its output the layer's backward takes; more are added up before.
  [[nodiscard]] virtual int gradients_taken() const { return 1; }
  /// True when the layer, where its plan stores less (PlanBuilder::fuses()), takes as its i-th input the output of a
  /// batch norm, with a ReLU or without, that was not computed: the tensor and the coefficients that it would be
  /// computed from.
  [[nodiscard]] virtual bool takes_norm(int i, bool relu) const {
    (void)i;
    (void)relu;
    return false;
  }
  /// The layer's buffer near which the values of its input lie, a number for each channel, when it wants to get their
  /// sums from the layer that computes the input (ConvNorm in kernels/conv2d.hpp); empty: it does not. input: without
  /// memory.
  [[nodiscard]] virtual std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const {
    (void)builder;
    (void)input;
    return {};
  }
  /// False when backward never reads the layer's output, so that the next layer may overwrite it.
  [[nodiscard]] virtual bool backward_reads_output() const { return true; }
  /// Appends the forward calls to the plan and leaves behind (PlanBuilder::on_backward) what appends the backward
  /// calls. Called once per plan, in the order of the model.
  virtual void plan(PlanBuilder& builder) const = 0;

 private:
  std::string name_;
};

}  // namespace lockstep::nn

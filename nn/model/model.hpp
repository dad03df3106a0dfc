#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/layer.hpp>

namespace lockstep::nn {

/// A node of a model, as an index into Model::nodes(): the output of a layer, or the input of the model.
struct NodeId {
  int index = -1;
  friend bool operator==(const NodeId&, const NodeId&) = default;
};

struct Node {
  std::shared_ptr<const Layer> layer;  ///< layer of the node; null for the input of the model
  std::vector<NodeId> inputs;          ///< inputs of the layer; each precedes this node in Model::nodes()
  Shape shape;                         ///< stored shape of one sample, channels last
  std::int64_t channels = 0;           ///< logical channels of the last axis; all other stored channels are zero
};

/// Returns the shapes of the inputs of `node`, in the order of the inputs.
[[nodiscard]] std::vector<Shape> input_shapes(const std::vector<Node>& nodes, const Node& node);

/// Initial values of a parameter that replace all or some numbers that ParameterSpec::init gives.
struct InitialValue {
  bool identity = false;                                ///< true: the first filters are identity (ConvInit::identity)
  std::shared_ptr<const std::vector<double>> values{};  ///< values of all elements, in the order of `dims`, or null
};

/// An immutable graph of layers from one input to one output, made by a ModelBuilder (nn/layers/model_builder.hpp). A
/// model does not depend on a device, batch size or dtype, and may be shared freely.
class Model {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] NodeId output() const { return {static_cast<int>(nodes_.size()) - 1}; }
  /// Returns the logical shape of an input sample: (D, H, W, C), (H, W, C), (T, C), (features), or (T) for T tokens.
  [[nodiscard]] const Shape& input_shape() const { return input_shape_; }
  [[nodiscard]] InputKind input_kind() const { return input_kind_; }
  /// Returns the same model with the input kind `kind`. Only an input of shape (H, W, 3) can have two kinds: u8 images
  /// and values. Throws UsageError if the model's input cannot have this kind.
  [[nodiscard]] Model reading(InputKind kind) const;
  [[nodiscard]] const Shape& output_shape() const { return nodes_.back().shape; }
  [[nodiscard]] std::int64_t classes() const { return output_shape().back(); }
  /// Returns the number of learned values, counted by logical shape. A parameter that layers share counts once.
  [[nodiscard]] std::int64_t parameter_count() const;

  /// A parameter of the model, and the number of times that its gradient is written per step. The number is above 1 if
  /// layers share the parameter.
  struct Parameter {
    ParameterSpec spec;
    int writes = 1;
    InitialValue beginning{};
  };
  /// Returns the parameters in the order in which backward completes their gradients: from the last layer to the first,
  /// and within a layer in the order of Layer::parameters(). A shared parameter has the position of its last gradient
  /// write. Frozen parameters come after all trainable ones, in the same order. Throws ShapeError if a shared parameter
  /// has two shapes, or if the model has more than 2^56 values. ModelBuilder::build() throws the same errors.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// Returns the same model with more frozen parameters (ParameterSpec::trainable is false): those whose name is
  /// `prefix` or begins with `prefix` and a dot ("layer1", "conv1.weight"). The gradient of a frozen parameter is not
  /// computed, reduced or stored, and the optimizer does not change the parameter. Backward stops at the first layer
  /// that has a trainable parameter. Running statistics are still updated. Throws UsageError if there is no such
  /// parameter, or if no trainable parameter would be left.
  [[nodiscard]] Model freezing(const std::string& prefix) const;
  /// Returns the same model with the initial values `values` for `parameter`, in the order of the logical shape. Throws
  /// UsageError if there is no such parameter, if the parameter has another number of values, or if a value is not
  /// finite.
  [[nodiscard]] Model with_initial_value(const std::string& parameter, std::vector<double> values) const;
  [[nodiscard]] std::vector<BufferSpec> buffers() const;  ///< buffers of all layers, in the order of the layers
  /// Returns, for each layer name, a text with the layer's kind, inputs and settings, like "conv2d of input: stride 2,
  /// pad 1". Models with equal parameters and equal texts compute the same function. If several layers have one name,
  /// the second and later ones get a number: "relu (2)".
  [[nodiscard]] std::map<std::string, std::string> layer_texts() const;

 private:
  friend class ModelBuilder;
  void freeze(const std::string& prefix);
  void require_training() const;
  std::string name_;
  Shape input_shape_;
  InputKind input_kind_ = InputKind::values;
  std::vector<Node> nodes_;
  std::vector<std::string> frozen_;                     ///< names of the frozen parameters
  std::map<std::string, InitialValue> initial_values_;  ///< initial values, by name of the parameter
};

}  // namespace lockstep::nn

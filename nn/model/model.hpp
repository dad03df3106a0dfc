#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/layer.hpp>

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

/// The shapes of the node's inputs, in their order.
[[nodiscard]] std::vector<Shape> input_shapes(const std::vector<Node>& nodes, const Node& node);

/// What a parameter begins with instead of what ParameterSpec::init draws, or in a part of it.
struct InitialValue {
  bool identity = false;                                ///< the first filters are the identity, ConvInit::identity
  std::shared_ptr<const std::vector<double>> values{};  ///< all of it, in the order of `dims`; null: not given
};

/// An immutable graph of layers from one input to one output. Knows no device, batch size or dtype; made by a
/// ModelBuilder (nn/layers/model_builder.hpp), shared freely.
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
    InitialValue beginning{};
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
  [[nodiscard]] Model with_initial_value(const std::string& parameter, std::vector<double> values) const;
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
  std::vector<std::string> frozen_;                     ///< names of parameters
  std::map<std::string, InitialValue> initial_values_;  ///< by the names of parameters
};

}  // namespace lockstep::nn

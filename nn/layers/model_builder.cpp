#include <lockstep/nn/layers/model_builder.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {

ModelBuilder::ModelBuilder(std::string name, const Shape& input)
    : ModelBuilder(std::move(name), input, InputKind::values) {}

ModelBuilder ModelBuilder::for_images(std::string name, const Shape& input) {
  return {std::move(name), input, InputKind::images};
}

ModelBuilder ModelBuilder::for_tokens(std::string name, std::int64_t length) {
  return {std::move(name), {length}, InputKind::tokens};
}

ModelBuilder::ModelBuilder(std::string name, const Shape& input, InputKind kind) {
  require<ShapeError>(input.rank() >= 1 && input.rank() <= 4 && input.numel() > 0, "model ", name, ": input shape is ",
                      input,
                      ", expected (D, H, W, C), (H, W, C), (T, C), (features) or (T) tokens, each extent at least 1");
  require<ShapeError>(kind != InputKind::images || (input.rank() == 3 && input.back() == 3), "model ", name,
                      ": images are ", input, ", expected (H, W, 3)");
  model_.name_ = std::move(name);
  model_.input_shape_ = input;
  model_.input_kind_ = kind;
  model_.nodes_.push_back(
      {.layer = nullptr, .inputs = {}, .shape = stored_input_shape(input), .channels = input.back()});
}

NodeId ModelBuilder::add(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs) {
  for (const NodeId input : inputs) {
    if (input.index >= 0 && input.index < static_cast<int>(model_.nodes_.size())) {
      require_all_channels(layer->name(), input);
    }
  }
  return add_stored(std::move(layer), std::move(inputs));
}

NodeId ModelBuilder::add_stored(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs) {
  Node node{.layer = std::move(layer), .inputs = std::move(inputs), .shape = {}, .channels = 0};
  constexpr std::size_t kLongestName = 1000;  // a file stores tensor names of at most 1024 bytes
  const std::string& name = node.layer->name();
  require<UsageError>(name.size() <= kLongestName && displayed(name) == name, "model ", model_.name_, ": layer ",
                      printable(name), ", expected a name of UTF-8 without control characters, at most ", kLongestName,
                      " bytes, since files have it");
  for (const NodeId input : node.inputs) {
    require<StateError>(
        input.index >= 0 && input.index < static_cast<int>(model_.nodes_.size()), "model ", model_.name_, ": layer ",
        node.layer->name(),
        " has an input that is no node of this model, expected one that input() or add() of it returned");
    require<ShapeError>(node.layer->reads_tokens() == (model_.input_kind_ == InputKind::tokens && input.index == 0),
                        "model ", model_.name_, ": layer ", node.layer->name(), " reads ",
                        node.layer->reads_tokens()
                            ? "tokens, and its input holds numbers; expected the model's input of tokens"
                            : "numbers, and its input holds tokens; expected an embedding between them");
  }
  try {
    node.shape = node.layer->output_shape(input_shapes(model_.nodes_, node));
  } catch (ShapeError& error) {
    // Errors of ops do not name the layer, so the name is added here.
    if (!std::string_view(error.what()).starts_with(node.layer->name() + ": ")) {
      error.annotate(concat("model ", model_.name_, ": layer ", node.layer->name()));
    }
    throw;
  }
  for (const BufferSpec& buffer : node.layer->buffers(input_shapes(model_.nodes_, node))) {
    require<ShapeError>(
        buffer.values.empty() || static_cast<std::int64_t>(buffer.values.size()) == buffer.shape.numel(), "model ",
        model_.name_, ": buffer ", buffer.name, " is given ", buffer.values.size(), " values, expected ",
        buffer.shape.numel());
  }
  node.channels = node.shape.back();
  model_.nodes_.push_back(std::move(node));
  return model_.output();
}

NodeId ModelBuilder::add_channelwise(std::shared_ptr<const Layer> layer, std::vector<NodeId> inputs) {
  const NodeId node = add_stored(std::move(layer), std::move(inputs));
  Node& added = model_.nodes_.back();
  added.channels = 0;
  for (const NodeId input : added.inputs) {
    added.channels = std::max(added.channels, channels(input));
  }
  return node;
}

std::int64_t ModelBuilder::channels(NodeId node) const {
  return model_.nodes_.at(static_cast<std::size_t>(node.index)).channels;
}

void ModelBuilder::require_all_channels(const std::string& name, NodeId x) const {
  require<ShapeError>(channels(x) == shape(x).back(), "model ", model_.name_, ": layer ", name, " would take ",
                      shape(x).back(), " channels of its input, of which only ", channels(x),
                      " are no padding; expected a convolution in front of it");
}

const Shape& ModelBuilder::shape(NodeId node) const {
  return model_.nodes_.at(static_cast<std::size_t>(node.index)).shape;
}

Model ModelBuilder::build() {
  require<StateError>(model_.nodes_.size() > 1, "model ", model_.name_, " has no layers, expected at least one");
  const Node& last = model_.nodes_.back();
  require<ShapeError>(
      last.channels == last.shape.back(), "model ", model_.name_, ": its output has ", last.channels,
      " channels, which are stored as ", last.shape.back(),
      "; expected a model that ends with a layer that makes channels of its own, a convolution or a linear layer");
  model_.require_training();
  return std::exchange(model_, Model{});
}

void ModelBuilder::freeze(const std::string& prefix) {
  model_.freeze(prefix);
}

}  // namespace lockstep::nn

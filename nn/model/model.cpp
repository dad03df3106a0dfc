#include <lockstep/nn/model/model.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <lockstep/nn/layers/conv.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/step/step_state.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {

namespace {

/// More cannot be counted in bytes of 64 bits, with the states of an optimizer.
constexpr std::int64_t kMostValues = std::int64_t{1} << 56;

std::vector<Shape> input_shapes(const std::vector<Node>& nodes, const Node& node) {
  std::vector<Shape> shapes;
  for (const NodeId input : node.inputs) {
    shapes.push_back(nodes[static_cast<std::size_t>(input.index)].shape);
  }
  return shapes;
}

}  // namespace

Shape ParameterSpec::stored_shape() const {
  Shape stored;
  for (const int axis : axes) {
    stored.push_back(dims[axis]);
  }
  stored[stored.rank() - 1] = stored_last;
  return stored;
}

Shape BufferSpec::stored_shape() const {
  Shape stored = shape;
  stored[stored.rank() - 1] = stored_last;
  return stored;
}

std::vector<Model::Parameter> Model::parameters() const {
  std::vector<Parameter> list;
  std::unordered_map<std::string, std::size_t> places;  // of the last write, by name
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    if (!node->layer) {
      continue;
    }
    std::vector<ParameterSpec> specs = node->layer->parameters(input_shapes(nodes_, *node));
    const bool last = list.empty();
    for (ParameterSpec& spec : specs) {
      Parameter parameter{.spec = std::move(spec), .writes = 1};
      parameter.spec.last = last;
      const auto [place, first] = places.try_emplace(parameter.spec.name, list.size());
      if (!first) {
        Parameter& tied = list[place->second];
        require<ShapeError>(tied.spec.stored_shape() == parameter.spec.stored_shape(), "model ", name_, ": parameter ",
                            parameter.spec.name, " has shape ", tied.spec.shape, " in one layer and ",
                            parameter.spec.shape, " in another");
        parameter.spec.looked_up |= tied.spec.looked_up;
        parameter.spec.last |= tied.spec.last;
        parameter.writes = std::exchange(tied.writes, 0) + 1;
        place->second = list.size();
      }
      list.push_back(std::move(parameter));
    }
  }
  std::erase_if(list, [](const Parameter& parameter) { return parameter.writes == 0; });
  std::int64_t room = kMostValues;
  for (const Parameter& parameter : list) {
    const std::int64_t values = parameter.spec.stored_shape().numel();
    require<ShapeError>(values <= room, "model ", name_, ": more than ", kMostValues, " parameters with ",
                        parameter.spec.name, " of shape ", parameter.spec.shape);
    room -= values;
  }
  const std::unordered_set<std::string> frozen(frozen_.begin(), frozen_.end());
  for (Parameter& parameter : list) {
    parameter.spec.trainable = frozen.count(parameter.spec.name) == 0;
    if (const auto beginning = beginnings_.find(parameter.spec.name); beginning != beginnings_.end()) {
      parameter.beginning = beginning->second;
    }
  }
  std::stable_partition(list.begin(), list.end(), [](const Parameter& parameter) { return parameter.spec.trainable; });
  return list;
}

namespace {

/// Names of layers from the first to the last, which backward meets first.
std::string forward_text(const std::vector<std::string>& layers) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < layers.size() && i < kMost; ++i) {
    text += (i == 0 ? "" : ", ") + layers[layers.size() - 1 - i];
  }
  return layers.size() > kMost ? text + ", ..." : text;
}

}  // namespace

void Model::freeze(const std::string& prefix) {
  bool found = false;
  std::vector<std::string> layers;  // by the part of their names before the first point
  for (const Parameter& parameter : parameters()) {
    const std::string& name = parameter.spec.name;
    const std::string layer = name.substr(0, name.find('.'));
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
      layers.push_back(layer);
    }
    if (name == prefix || name.starts_with(prefix + ".")) {
      found = true;
      if (parameter.spec.trainable) {
        frozen_.push_back(name);
      }
    }
  }
  require<UsageError>(found, "model ", name_, ": there is no parameter '", prefix, "' or '", prefix,
                      ".' to freeze, expected a layer's or a parameter's name: ", forward_text(layers),
                      " or one in them");
}

void Model::require_training() const {
  const std::vector<Parameter> all = parameters();
  require<UsageError>(frozen_.empty() || (!all.empty() && all.front().spec.trainable), "model ", name_,
                      ": all parameters are frozen, expected one that trains");
}

Model Model::freezing(const std::string& prefix) const {
  Model model = *this;
  model.freeze(prefix);
  model.require_training();
  return model;
}

Model Model::beginning_with(const std::string& parameter, std::vector<double> values) const {
  const std::vector<Parameter> all = parameters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Parameter& one) { return one.spec.name == parameter; });
  require<UsageError>(found != all.end(), "model ", name_, ": there is no parameter '", parameter,
                      "' to begin with given values, expected a parameter's name");
  const std::int64_t expected = found->spec.shape.numel();
  require<UsageError>(static_cast<std::int64_t>(values.size()) == expected, "model ", name_, ": ", values.size(),
                      " values are given for parameter ", parameter, " of shape ", found->spec.shape, ", expected ",
                      expected);
  for (const double value : values) {
    require<UsageError>(std::isfinite(value), "model ", name_, ": a value given for parameter ", parameter, " is ",
                        value, ", expected finite numbers");
  }
  Model model = *this;
  model.beginnings_[parameter] = {.values = std::make_shared<const std::vector<double>>(std::move(values))};
  return model;
}

std::vector<BufferSpec> Model::buffers() const {
  std::vector<BufferSpec> list;
  std::unordered_set<std::string> names;
  for (const Node& node : nodes_) {
    if (node.layer) {
      for (BufferSpec& spec : node.layer->buffers(input_shapes(nodes_, node))) {
        if (names.insert(spec.name).second) {  // layers of one name have the same ones, as they have parameters
          list.push_back(std::move(spec));
        }
      }
    }
  }
  return list;
}

std::map<std::string, std::string> Model::layer_texts() const {
  std::map<std::string, std::string> texts;
  std::vector<std::string> names{"input"};  // of the nodes
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const Layer& layer = *nodes_[i].layer;
    std::string name = layer.name();
    for (int number = 2; texts.count(name) != 0; ++number) {
      name = concat(layer.name(), " (", number, ')');
    }
    std::string text = layer.kind();
    const char* separator = " of ";
    for (const NodeId input : nodes_[i].inputs) {
      text += std::exchange(separator, ", ") + names[static_cast<std::size_t>(input.index)];
    }
    if (const std::string settings = layer.settings(); !settings.empty()) {
      text += ": " + settings;
    }
    texts[name] = text;
    names.push_back(name);
  }
  return texts;
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) {
    count += parameter.spec.shape.numel();
  }
  return count;
}

Model Model::reading(InputKind kind) const {
  const auto pixels = [](InputKind k) { return k != InputKind::tokens; };
  require<UsageError>(kind == input_kind_ ||
                          (pixels(kind) && pixels(input_kind_) && input_shape_.rank() == 3 && input_shape_.back() == 3),
                      "model ", name_, " reads ", input_shape_, " as ", lockstep::nn::name_of(input_field(input_kind_)),
                      ", not as ", lockstep::nn::name_of(input_field(kind)), "; only images (H, W, 3) have two forms");
  Model model = *this;
  model.input_kind_ = kind;
  return model;
}

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
                      input, ", expected (D, H, W, C), (H, W, C), (T, C), (features) or (T) tokens");
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
  constexpr std::size_t kLongestName = 1000;  // a tensor's in a file has at most 1024 bytes
  const std::string& name = node.layer->name();
  require<UsageError>(name.size() <= kLongestName && displayed(name) == name, "model ", model_.name_, ": layer ",
                      printable(name), ", expected a name of UTF-8 without control characters, at most ", kLongestName,
                      " bytes, since files have it");
  for (const NodeId input : node.inputs) {
    require<StateError>(input.index >= 0 && input.index < static_cast<int>(model_.nodes_.size()), "model ",
                        model_.name_, ": layer ", node.layer->name(), " has an input that is no node of this model");
    require<ShapeError>(
        node.layer->reads_tokens() == (model_.input_kind_ == InputKind::tokens && input.index == 0), "model ",
        model_.name_, ": layer ", node.layer->name(), " reads ",
        node.layer->reads_tokens() ? "tokens and its input is none" : "numbers and its input are tokens");
  }
  try {
    node.shape = node.layer->output_shape(input_shapes(model_.nodes_, node));
  } catch (ShapeError& error) {
    if (!std::string_view(error.what()).starts_with(node.layer->name() + ": ")) {  // an op's, which knows no layer
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
                      shape(x).back(), " channels where ", channels(x),
                      " are meant, the others being padding; put a convolution in front of it");
}

const Shape& ModelBuilder::shape(NodeId node) const {
  return model_.nodes_.at(static_cast<std::size_t>(node.index)).shape;
}

Model ModelBuilder::build() {
  require<StateError>(model_.nodes_.size() > 1, "model ", model_.name_, " has no layers");
  const Node& last = model_.nodes_.back();
  require<ShapeError>(last.channels == last.shape.back(), "model ", model_.name_, ": its output has ", last.channels,
                      " channels, which are stored as ", last.shape.back(),
                      "; end it with a layer that makes channels of its own, a convolution or a linear layer");
  model_.require_training();
  return std::exchange(model_, Model{});
}

void ModelBuilder::freeze(const std::string& prefix) {
  model_.freeze(prefix);
}

NodeId ModelBuilder::add_conv(int axes, const std::string& name, NodeId x, std::int64_t channels,
                              const ConvOptions& options) {
  if (options.groups != 1) {
    require_all_channels(name, x);  // the padding would be channels of the last group
  }
  const NodeId y = add_stored(std::make_shared<ConvLayer>(axes, name, this->channels(x), channels, options), {x});
  if (options.init == ConvInit::identity) {
    require<UsageError>(options.groups == 1, "model ", model_.name_, ": layer ", name, " has ", options.groups,
                        " groups and begins as the identity, expected 1 group");
    model_.beginnings_[name + ".weight"] = {.identity = true};
  }
  return y;
}

NodeId ModelBuilder::conv1d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options) {
  return add_conv(1, name, x, channels, options);
}

NodeId ModelBuilder::conv2d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options) {
  return add_conv(2, name, x, channels, options);
}

NodeId ModelBuilder::conv3d(const std::string& name, NodeId x, std::int64_t channels, const ConvOptions& options) {
  return add_conv(3, name, x, channels, options);
}

NodeId ModelBuilder::add_conv_transpose(int axes, const std::string& name, NodeId x, std::int64_t channels,
                                        const ConvTransposeOptions& options) {
  return add_stored(std::make_shared<ConvTransposeLayer>(axes, name, this->channels(x), channels, options), {x});
}

NodeId ModelBuilder::conv_transpose1d(const std::string& name, NodeId x, std::int64_t channels,
                                      const ConvTransposeOptions& options) {
  return add_conv_transpose(1, name, x, channels, options);
}

NodeId ModelBuilder::conv_transpose2d(const std::string& name, NodeId x, std::int64_t channels,
                                      const ConvTransposeOptions& options) {
  return add_conv_transpose(2, name, x, channels, options);
}

NodeId ModelBuilder::conv_transpose3d(const std::string& name, NodeId x, std::int64_t channels,
                                      const ConvTransposeOptions& options) {
  return add_conv_transpose(3, name, x, channels, options);
}

NodeId ModelBuilder::batch_norm(const std::string& name, NodeId x, const BatchNormOptions& options) {
  std::vector<NodeId> inputs{x};
  if (options.residual.index >= 0) {
    inputs.push_back(options.residual);
  }
  return add_channelwise(std::make_shared<BatchNormLayer>(name, channels(x), options), std::move(inputs));
}

NodeId ModelBuilder::layer_norm(const std::string& name, NodeId x, double epsilon) {
  require_all_channels(name, x);
  return add(std::make_shared<LayerNormLayer>(name, epsilon), {x});
}

NodeId ModelBuilder::relu(const std::string& name, NodeId x) {
  return add_channelwise(std::make_shared<ReluLayer>(name), {x});
}

NodeId ModelBuilder::activation(const std::string& name, NodeId x, ops::Activation function) {
  if (function == ops::Activation::sigmoid) {
    require_all_channels(name, x);  // it makes 1/2 of a zero
  }
  return add_channelwise(std::make_shared<ActivationLayer>(name, function), {x});
}

NodeId ModelBuilder::scale(const std::string& name, NodeId x, double factor) {
  return add_channelwise(std::make_shared<ScaleLayer>(name, factor), {x});
}

NodeId ModelBuilder::max_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(2, name, PoolWindow{kernel, stride, pad}), {x});
}

NodeId ModelBuilder::max_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(1, name, PoolWindow{kernel, stride, pad}), {x});
}

NodeId ModelBuilder::max_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad) {
  return add_channelwise(std::make_shared<MaxPoolLayer>(3, name, PoolWindow{kernel, stride, pad}), {x});
}

NodeId ModelBuilder::average_pool(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride, AxisSizes pad,
                                  ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(2, name, PoolWindow{kernel, stride, pad}, over), {x});
}

NodeId ModelBuilder::average_pool1d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride,
                                    AxisSizes pad, ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(1, name, PoolWindow{kernel, stride, pad}, over), {x});
}

NodeId ModelBuilder::average_pool3d(const std::string& name, NodeId x, AxisSizes kernel, AxisSizes stride,
                                    AxisSizes pad, ops::AverageOver over) {
  return add_channelwise(std::make_shared<AveragePoolLayer>(3, name, PoolWindow{kernel, stride, pad}, over), {x});
}

NodeId ModelBuilder::global_average_pool(const std::string& name, NodeId x) {
  return add_channelwise(std::make_shared<GlobalAveragePoolLayer>(name), {x});
}

NodeId ModelBuilder::subsample_pad(const std::string& name, NodeId x, std::int64_t channels, std::int64_t stride) {
  return add_stored(std::make_shared<SubsamplePadLayer>(name, channels, stride), {x});
}

NodeId ModelBuilder::linear(const std::string& name, NodeId x, std::int64_t features, const LinearOptions& options) {
  Shape logical = shape(x);
  logical[logical.rank() - 1] = channels(x);
  std::vector<NodeId> inputs{x};
  if (options.residual.index >= 0) {
    inputs.push_back(options.residual);
  }
  return add_stored(std::make_shared<LinearLayer>(name, logical, features, options), std::move(inputs));
}

NodeId ModelBuilder::embedding(const std::string& name, const std::string& positions, NodeId tokens,
                               std::int64_t vocabulary, std::int64_t width) {
  return add(std::make_shared<EmbeddingLayer>(name, positions, vocabulary, width), {tokens});
}

NodeId ModelBuilder::attention(const std::string& name, NodeId qkv, const AttentionOptions& options) {
  return add(std::make_shared<AttentionLayer>(name, options), {qkv});
}

NodeId ModelBuilder::add(const std::string& name, NodeId a, NodeId b) {
  return add_channelwise(std::make_shared<AddLayer>(name), {a, b});
}

NodeId ModelBuilder::dropout(const std::string& name, NodeId x, double rate) {
  const auto number = static_cast<std::uint32_t>(model_.nodes_.size());  // every layer draws numbers of its own
  return add_channelwise(std::make_shared<DropoutLayer>(name, rate, number), {x});
}

}  // namespace lockstep::nn

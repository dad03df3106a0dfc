#include <lockstep/nn/model/model.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

/// Largest number of parameter values of a model. The bytes of the values and of the optimizer's states then fit into
/// 64 bits.
constexpr std::int64_t kMostValues = std::int64_t{1} << 56;

}  // namespace

std::vector<Shape> input_shapes(const std::vector<Node>& nodes, const Node& node) {
  std::vector<Shape> shapes;
  for (const NodeId input : node.inputs) {
    shapes.push_back(nodes[static_cast<std::size_t>(input.index)].shape);
  }
  return shapes;
}

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
  std::unordered_map<std::string, std::size_t> places;  // for each name, index of the newest entry in `list`
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
                            parameter.spec.shape, " in another, expected one shape");
        parameter.spec.embedding_table |= tied.spec.embedding_table;
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
    require<ShapeError>(values <= room, "model ", name_, ": parameter ", parameter.spec.name, " has shape ",
                        parameter.spec.shape, ", expected at most ", kMostValues, " values in all parameters");
    room -= values;
  }
  const std::unordered_set<std::string> frozen(frozen_.begin(), frozen_.end());
  for (Parameter& parameter : list) {
    parameter.spec.trainable = frozen.count(parameter.spec.name) == 0;
    if (const auto beginning = initial_values_.find(parameter.spec.name); beginning != initial_values_.end()) {
      parameter.beginning = beginning->second;
    }
  }
  std::stable_partition(list.begin(), list.end(), [](const Parameter& parameter) { return parameter.spec.trainable; });
  return list;
}

namespace {

/// Joins up to 16 of `layers` in reverse order, because backward lists the model's last layer first.
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
  std::vector<std::string> layers;  // texts before the first dot in the names of parameters
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

Model Model::with_initial_value(const std::string& parameter, std::vector<double> values) const {
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
  model.initial_values_[parameter] = {.values = std::make_shared<const std::vector<double>>(std::move(values))};
  return model;
}

std::vector<BufferSpec> Model::buffers() const {
  std::vector<BufferSpec> list;
  std::unordered_set<std::string> names;
  for (const Node& node : nodes_) {
    if (node.layer) {
      for (BufferSpec& spec : node.layer->buffers(input_shapes(nodes_, node))) {
        if (names.insert(spec.name).second) {  // layers with equal names share buffers, like parameters
          list.push_back(std::move(spec));
        }
      }
    }
  }
  return list;
}

std::map<std::string, std::string> Model::layer_texts() const {
  std::map<std::string, std::string> texts;
  std::vector<std::string> names{"input"};  // names of the nodes
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
                      "model ", name_, ": reading() is given ", lockstep::nn::name_of(input_field(kind)), ", expected ",
                      lockstep::nn::name_of(input_field(input_kind_)), ", the kind of its input ", input_shape_,
                      "; only an input (H, W, 3) may be read as images or as values");
  Model model = *this;
  model.input_kind_ = kind;
  return model;
}

}  // namespace lockstep::nn

#include <lockstep/kernels/cudnn/conv_graph.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>

#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::ops::cudnn {
namespace {

constexpr std::string_view kSplit = "split:";
constexpr std::string_view kNorm = "norm:";
constexpr std::int64_t kAlignment = 16;  // in bytes; conv2d.cpp refuses operands with a smaller alignment

cudnnDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : dtype == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/// Returns the graph's tensor for a tensor of shape `shape`, whose last axis is the channels.
GraphTensor channels_last(std::int64_t uid, DType dtype, const Shape& shape) {
  GraphTensor t{uid, dtype, {shape[0], shape[shape.rank() - 1]}, {}};
  if (shape.rank() == 3) {
    t.dims.push_back(1);
  }
  for (int i = 1; i + 1 < shape.rank(); ++i) {
    t.dims.push_back(shape[i]);
  }
  t.strides.resize(t.dims.size());
  std::int64_t stride = 1;
  t.strides[1] = stride;
  stride *= t.dims[1];
  for (std::size_t i = t.dims.size(); i-- > 2;) {
    t.strides[i] = stride;
    stride *= t.dims[i];
  }
  t.strides[0] = stride;
  return t;
}

std::vector<std::int64_t> spatial(const ConvDesc& d, const std::array<std::int64_t, 3>& values, std::int64_t missing) {
  std::vector<std::int64_t> all;
  if (d.spatial_rank == 1) {
    all.push_back(missing);
  }
  for (int i = 0; i < d.spatial_rank; ++i) {
    all.push_back(values[static_cast<std::size_t>(i)]);
  }
  return all;
}

bool is_integer(std::string_view text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::to_string(value) == text;
}

/// Returns the engine and its settings from `config`, a configuration that cuDNN's heuristics filled in.
Engine engine_of(const Descriptor& config) {
  Engine engine;
  const auto engines = config.descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  engine.index = engines.at(0).value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64);
  for (const Descriptor& knob : config.descriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                   CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS)) {
    engine.knobs.emplace_back(
        static_cast<int>(knob.value<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE)),
        knob.value<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
  }
  std::sort(engine.knobs.begin(), engine.knobs.end());
  return engine;
}

/// The number of configurations that recommended() requests from cuDNN; no list of cuDNN 9.19 has more than 40.
constexpr std::int64_t kListLength = 64;

/// Returns the configurations that cuDNN's heuristics recommend in mode `mode`.
std::vector<Descriptor> recommended(const OperationGraph& graph, const Target& target, cudnnBackendHeurMode_t mode) {
  static std::mutex mutex;  // mode B must not run on two threads at once
  std::unique_lock lock(mutex, std::defer_lock);
  if (mode == CUDNN_HEUR_MODE_B) {
    lock.lock();
  }
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor());
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.properties != nullptr) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  }
  heuristics.finalize();
  return heuristics.descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kListLength);
}

std::int64_t engine_count(const OperationGraph& graph) {
  return graph.descriptor().value<std::int64_t>(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64);
}

/// Numbers of deterministic algorithms to take from mode A, mode B and the fallback list. At most one algorithm that
/// cuDNN calls nondeterministic is taken in addition from each of the three lists.
using Quotas = std::array<std::size_t, 3>;

bool is_deterministic(const EngineConfig& config) {
  return !config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
}

/// A search for the algorithms of one pass, and the algorithms found so far, in the order of cuDNN's lists. Engines and
/// lists at which cuDNN fails are left out, because the other engines may still work.
class Search {
 public:
  Search(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines, std::vector<std::string>* refused)
      : target_(target), desc_(desc), pass_(pass), engines_(engines), refused_(refused) {}

  std::vector<Algorithm> first;  ///< deterministic algorithms
  std::vector<Algorithm> last;   ///< nondeterministic algorithms

  [[nodiscard]] bool empty() const { return first.empty() && last.empty(); }

  /// Returns the graph of the pass in form `form`, or nothing if cuDNN refuses this graph.
  [[nodiscard]] std::optional<OperationGraph> graph(Form form) const {
    const ConvGraph described = describe(desc_, pass_, form);
    std::optional<OperationGraph> made;
    attempt([&] { made.emplace(described, target_); });
    return made;
  }

  void add_recommended(const Quotas& quotas, const OperationGraph& graph, Form form) {
    constexpr cudnnBackendHeurMode_t kModes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};
    for (std::size_t i = 0; i < quotas.size(); ++i) {
      std::size_t left = quotas[i];
      std::size_t left_others = 1;
      std::vector<Descriptor> configs;
      attempt([&] { configs = recommended(graph, target_, kModes[i]); });
      for (const Descriptor& config : configs) {
        if (left == 0) {
          break;
        }
        attempt([&] {
          const Algorithm algorithm{form, engine_of(config)};
          if (has(algorithm)) {
            return;
          }
          const EngineConfig checked(graph, target_, algorithm.engine);
          if (!wanted(checked)) {
            return;
          }
          if (is_deterministic(checked)) {
            first.push_back(algorithm);
            --left;
          } else if (left_others > 0) {
            last.push_back(algorithm);
            --left_others;
          }
        });
      }
    }
  }

  /// Adds up to `limit` engines with their default settings. cuDNN refuses most engines, because they compute other
  /// operations.
  void add_untuned(std::size_t limit, const OperationGraph& graph) {
    const std::int64_t count = engine_count(graph);
    for (std::int64_t index = 0; index < count && limit > 0; ++index) {
      attempt([&] {
        const Engine engine{index, {}};
        const EngineConfig config(graph, target_, engine);
        if (wanted(config)) {
          (is_deterministic(config) ? first : last).push_back({Form::fused, engine});
          --limit;
        }
      });
    }
  }

 private:
  [[nodiscard]] bool wanted(const EngineConfig& config) const {
    return allowed(config, desc_) && (engines_ == Engines::all || !config.compiled_when_planned());
  }
  [[nodiscard]] bool has(const Algorithm& algorithm) const {
    return std::find(first.begin(), first.end(), algorithm) != first.end() ||
           std::find(last.begin(), last.end(), algorithm) != last.end();
  }
  template <class F>
  void attempt(const F& f) const {
    unless_refused(f, [this](const Error& error) {
      if (refused_ != nullptr && dynamic_cast<const UnsupportedError*>(&error) == nullptr) {
        refused_->push_back(error.what());
      }
    });
  }

  const Target& target_;
  const ConvDesc& desc_;
  ConvPass pass_;
  Engines engines_;
  std::vector<std::string>* refused_;
};

/// The names that cuDNN gives to the operation of a pass and to the attributes of this operation.
struct PassNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t conv, alpha, beta, x, weights, y;
};
constexpr PassNames kForward{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
constexpr PassNames kBackwardData{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
constexpr PassNames kBackwardWeights{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};

const PassNames& names_of(ConvPass pass) {
  return pass == ConvPass::forward ? kForward : pass == ConvPass::backward_data ? kBackwardData : kBackwardWeights;
}

}  // namespace

bool can_split(const ConvDesc& desc, ConvPass pass) {
  if (pass == ConvPass::forward) {
    return desc.bias;
  }
  return desc.grad_mode == GradMode::accumulate ||
         (pass == ConvPass::backward_weights && accumulation_dtype(desc.dtype) != desc.dtype);
}

ConvGraph describe(const ConvDesc& desc, ConvPass pass, Form form) {
  require<UnsupportedError>(desc.dtype == DType::f32 || desc.dtype == DType::bf16 || desc.dtype == DType::f16,
                            "conv2d: dtype is ", desc.dtype, ", expected f32, bf16 or f16 with cudnn");
  require<UnsupportedError>(desc.pad_mode == PadMode::zero,
                            "conv2d: pad_mode is circular, expected zero: cudnn has no circular padding");
  ConvGraph graph;
  graph.pass = pass;
  const bool fused = form == Form::fused;
  const bool forward = pass == ConvPass::forward;
  const bool to_weights = pass == ConvPass::backward_weights;
  graph.x = channels_last(pass == ConvPass::backward_data ? Uid::out : Uid::a, desc.dtype, desc.x_shape());
  graph.y = channels_last(forward ? Uid::out : to_weights ? Uid::b : Uid::a, desc.dtype, desc.y_shape());
  graph.weights =
      channels_last(to_weights ? Uid::out : Uid::b, to_weights && fused ? accumulation_dtype(desc.dtype) : desc.dtype,
                    desc.weights_shape());
  if (forward && desc.bias && fused) {
    Shape ones = desc.y_shape();
    for (int i = 0; i + 1 < ones.rank(); ++i) {
      ones[i] = 1;
    }
    graph.bias = channels_last(Uid::bias, accumulation_dtype(desc.dtype), ones);
  }
  graph.stride = spatial(desc, desc.stride, 1);
  graph.dilation = spatial(desc, desc.dilation, 1);
  graph.pad_before = spatial(desc, desc.pad_before, 0);
  graph.pad_after = spatial(desc, desc.pad_after, 0);
  graph.accumulate = !forward && fused && desc.grad_mode == GradMode::accumulate;
  graph.passes_on = to_weights && fused && !graph.accumulate && graph.weights.dtype != desc.dtype;
  if (form == Form::norm) {
    require<UnsupportedError>(
        conv_may_serve_norm(desc, pass),
        "conv2d: cudnn has no engine that serves a norm with this convolution, expected one without a norm");
    graph.norm = desc.norm;
  }
  return graph;
}

std::string Engine::text() const {
  std::string all = concat("eng", index);
  char separator = ':';
  for (const auto& [type, value] : knobs) {
    all += concat(separator, 'k', type, '=', value);
    separator = ',';
  }
  return all;
}

std::optional<Engine> Engine::parse(std::string_view text) {
  Engine engine;
  const std::size_t colon = std::min(text.find(':'), text.size());
  if (text.substr(0, 3) != "eng" || !is_integer(text.substr(3, colon - 3), engine.index)) {
    return std::nullopt;
  }
  for (std::string_view rest = text.substr(colon); !rest.empty();) {
    rest.remove_prefix(1);  // removes ':' or ','
    const std::string_view knob = rest.substr(0, rest.find(','));
    const std::size_t equals = knob.find('=');
    std::int64_t type = 0;
    std::int64_t value = 0;
    if (equals == std::string_view::npos || knob.front() != 'k' || !is_integer(knob.substr(1, equals - 1), type) ||
        !is_integer(knob.substr(equals + 1), value) || type < 0 || type > 9999 ||
        (!engine.knobs.empty() && engine.knobs.back().first >= type)) {
      return std::nullopt;
    }
    engine.knobs.emplace_back(static_cast<int>(type), value);
    rest.remove_prefix(knob.size());
  }
  return engine;
}

/// The descriptors of a graph under construction. `kept` is a deque, so that descriptors keep their addresses.
struct OperationGraph::Parts {
  std::deque<Descriptor>& kept;
  std::vector<Descriptor> operations;
  std::int64_t next_virtual = Uid::count;

  const Descriptor& keep(Descriptor made) {
    kept.push_back(std::move(made));
    return kept.back();
  }

  const Descriptor& tensor(const GraphTensor& tensor, cudnnDataType_t type, bool is_virtual) {
    Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor.uid);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims);
    made.set(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides);
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
    if (is_virtual) {
      made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
    }
    made.finalize();
    return keep(std::move(made));
  }
  const Descriptor& tensor(const GraphTensor& of) { return tensor(of, type_of(of.dtype), false); }
  /// Adds an operand with the id `uid`, and with the type and shape of `of`.
  const Descriptor& operand(GraphTensor of, std::int64_t uid) {
    of.uid = uid;
    return tensor(of);
  }
  /// Adds an f32 tensor with the shape of `of`; cuDNN never stores this tensor.
  const Descriptor& passing(GraphTensor of) {
    of.uid = next_virtual++;
    return tensor(of, CUDNN_DATA_FLOAT, true);
  }
  /// Adds a tensor with one f32 number for each channel of the tensor `of`: shape (1, C, 1, ..).
  const Descriptor& per_channel(const GraphTensor& of, std::int64_t uid) {
    const std::int64_t channels = of.dims[1];
    GraphTensor vector{uid, DType::f32, std::vector<std::int64_t>(of.dims.size(), 1),
                       std::vector<std::int64_t>(of.dims.size(), channels)};
    vector.dims[1] = channels;
    vector.strides[1] = 1;
    return tensor(vector);
  }

  const Descriptor& description(const ConvGraph& graph) {
    Descriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<std::int64_t>(graph.stride.size()));
    made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
    made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, graph.pad_before);
    made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, graph.pad_after);
    made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, graph.dilation);
    made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, graph.stride);
    made.finalize();
    return keep(std::move(made));
  }
  /// Adds the convolution of the graph's pass. The pass decides whether the convolution writes `y`, `x` or `weights`.
  void convolution(const ConvGraph& graph, const Descriptor& conv, const Descriptor& x, const Descriptor& weights,
                   const Descriptor& y) {
    const PassNames& names = names_of(graph.pass);
    Descriptor operation(names.operation);
    operation.set(names.conv, conv);
    operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0F);
    operation.set(names.beta, CUDNN_TYPE_FLOAT, graph.accumulate ? 1.0F : 0.0F);
    operation.set(names.x, x);
    operation.set(names.weights, weights);
    operation.set(names.y, y);
    operation.finalize();
    operations.push_back(std::move(operation));
  }

  /// Adds the operation that computes `to` = mode(x), or mode(x, b) if `b` is not null, in f32.
  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& to) {
    Descriptor function(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    function.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    function.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(std::move(function)));
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) {
      operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    }
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    operation.finalize();
    operations.push_back(std::move(operation));
  }
  /// Adds the operation that sets `to` (channels) to the sum of `x` over all axes but the channels.
  void sum(const Descriptor& x, const Descriptor& to) {
    Descriptor function(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    function.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, CUDNN_REDUCE_TENSOR_ADD);
    function.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
#if CUDNN_VERSION >= 91100
    function.set(CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, true);
#endif
    function.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, keep(std::move(function)));
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    operation.finalize();
    operations.push_back(std::move(operation));
  }

  /// Adds the work of ConvNorm in a forward pass: the sums of y - shift and of (y - shift)^2.
  void serve_forward(const GraphTensor& shape, const Descriptor& y) {
    const Descriptor& off = passing(shape);
    pointwise(CUDNN_POINTWISE_SUB, y, &per_channel(shape, Uid::shift), off);
    sum(off, per_channel(shape, Uid::sums));
    const Descriptor& square = passing(shape);
    pointwise(CUDNN_POINTWISE_MUL, off, &off, square);
    sum(square, per_channel(shape, Uid::squares));
  }
  /// Adds ConvNorm's work in backward_data: g = (dx + addend) * mask, the sum of g, and sums of g * normalised input.
  void serve_backward(const GraphTensor& shape, const ConvNorm& norm, const Descriptor* dx, const Descriptor& g) {
    if (norm.addend) {
      const Descriptor& both = passing(shape);
      pointwise(CUDNN_POINTWISE_ADD, *dx, &operand(shape, Uid::addend), both);
      dx = &both;
    }
    GraphTensor mask = shape;
    mask.uid = Uid::mask;  // eight elements per byte, the first element in the lowest bit
    pointwise(CUDNN_POINTWISE_MUL, *dx, &tensor(mask, CUDNN_DATA_BOOLEAN, false), g);
    sum(g, per_channel(shape, Uid::sums));
    const auto sum_with = [&](std::int64_t x, std::int64_t mean, std::int64_t inv_std, std::int64_t to) {
      const Descriptor& off = passing(shape);
      pointwise(CUDNN_POINTWISE_SUB, operand(shape, x), &per_channel(shape, mean), off);
      const Descriptor& normalised = passing(shape);
      pointwise(CUDNN_POINTWISE_MUL, off, &per_channel(shape, inv_std), normalised);
      const Descriptor& product = passing(shape);
      pointwise(CUDNN_POINTWISE_MUL, g, &normalised, product);
      sum(product, per_channel(shape, to));
    };
    sum_with(Uid::x, Uid::mean, Uid::inv_std, Uid::squares);
    if (norm.pair) {
      sum_with(Uid::x2, Uid::mean2, Uid::inv_std2, Uid::sums2);
    }
  }
};

OperationGraph::OperationGraph(const ConvGraph& graph, const Target& target)
    : graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  Parts parts{parts_, {}};
  const Descriptor& conv = parts.description(graph);
  const Descriptor& x = parts.tensor(graph.x);
  const Descriptor& weights = parts.tensor(graph.weights);
  const Descriptor& y = parts.tensor(graph.y);
  switch (graph.pass) {
    case ConvPass::forward:
      if (graph.bias) {
        const Descriptor& sums = parts.passing(graph.y);
        parts.convolution(graph, conv, x, weights, sums);
        parts.pointwise(CUDNN_POINTWISE_ADD, sums, &parts.tensor(*graph.bias), y);
      } else {
        parts.convolution(graph, conv, x, weights, y);
      }
      if (graph.norm.wanted) {
        parts.serve_forward(graph.y, y);
      }
      break;
    case ConvPass::backward_data:
      if (graph.norm.wanted) {
        const Descriptor& dx = parts.passing(graph.x);
        parts.convolution(graph, conv, dx, weights, y);
        parts.serve_backward(graph.x, graph.norm, &dx, x);
      } else {
        parts.convolution(graph, conv, x, weights, y);
      }
      break;
    case ConvPass::backward_weights:
      if (graph.passes_on) {
        const Descriptor& sums = parts.passing(graph.weights);
        parts.convolution(graph, conv, x, sums, y);
        parts.pointwise(CUDNN_POINTWISE_IDENTITY, sums, nullptr, weights);
      } else {
        parts.convolution(graph, conv, x, weights, y);
      }
      break;
  }
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, parts.operations);
  if (target.handle != nullptr) {
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  graph_.finalize();
  for (Descriptor& operation : parts.operations) {
    parts.keep(std::move(operation));
  }
}

EngineConfig::EngineConfig(const OperationGraph& graph, const Target& target, const Engine& engine)
    : engine_(CUDNN_BACKEND_ENGINE_DESCRIPTOR), config_(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
  const std::int64_t count = engine_count(graph);
  require<UnsupportedError>(engine.index >= 0 && engine.index < count, "cuDNN engine ", engine.index,
                            " does not exist, expected 0 to ", count - 1);
  engine_.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.descriptor());
  engine_.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine.index);
  if (target.properties != nullptr) {
    engine_.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *target.properties);
  }
  engine_.finalize();
  for (const auto& [type, value] : engine.knobs) {
    Descriptor knob(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    knob.finalize();
    knobs_.push_back(std::move(knob));
  }
  config_.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine_);
  if (!knobs_.empty()) {
    config_.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knobs_);
  }
  config_.finalize();
}

bool EngineConfig::has(cudnnBackendNumericalNote_t note) const {
  const auto notes =
      engine_.values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

bool EngineConfig::compiled_when_planned() const {
  const auto notes =
      engine_.values<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE);
  return std::find(notes.begin(), notes.end(), CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != notes.end();
}

bool allowed(const EngineConfig& config, const ConvDesc& desc) {
  for (const cudnnBackendNumericalNote_t note :
       {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD,
        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13}) {
    if (config.has(note)) {
      return false;
    }
  }
  // For f32 tensors without tf32, two kinds of engines are not allowed: engines with tensor cores, which round factors
  // to TF32, and engines with the note DOWN_CONVERT_INPUTS, which round factors to 16 bits.
  const bool rounds = config.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  const bool tensor_core = config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  return desc.dtype != DType::f32 || desc.tf32 || (!rounds && !tensor_core);
}

std::string Algorithm::text() const {
  return concat(form == Form::split ? kSplit : form == Form::norm ? kNorm : "", engine.text());
}

std::optional<Algorithm> Algorithm::parse(std::string_view text) {
  Algorithm algorithm;
  for (const auto& [prefix, form] : {std::pair{kSplit, Form::split}, {kNorm, Form::norm}}) {
    if (algorithm.form == Form::fused && text.starts_with(prefix)) {
      algorithm.form = form;
      text.remove_prefix(prefix.size());
    }
  }
  std::optional<Engine> engine = Engine::parse(text);
  if (!engine) {
    return std::nullopt;
  }
  algorithm.engine = std::move(*engine);
  return algorithm;
}

std::vector<Algorithm> algorithms(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines,
                                  std::vector<std::string>* refused) {
  Search search(target, desc, pass, engines, refused);
  auto fused = search.graph(Form::fused);
  // With f16 tensors, split algorithms for backward_weights come last: they store sums in f16, where sums may overflow.
  const bool split_last = desc.dtype == DType::f16 && pass == ConvPass::backward_weights;
  // Engines of a graph with passes_on come last, as cuDNN compiles them at run time and their speed is unknown.
  const bool fused_last = !split_last && describe(desc, pass, Form::fused).passes_on;
  if (fused && !fused_last) {
    search.add_recommended({8, 4, 2}, *fused, Form::fused);
  }
  const bool know_fused = !search.empty();
  if (fused && !know_fused && split_last) {
    search.add_untuned(4, *fused);
  }
  if (can_split(desc, pass)) {
    if (const auto split = search.graph(Form::split)) {
      search.add_recommended(know_fused ? Quotas{4, 2, 1} : Quotas{8, 4, 2}, *split, Form::split);
    }
  }
  if (fused && fused_last) {
    search.add_recommended({4, 2, 1}, *fused, Form::fused);
  } else if (fused && !know_fused && !split_last) {
    search.add_untuned(4, *fused);
  }
  std::vector<Algorithm> all = std::move(search.first);
  all.insert(all.end(), search.last.begin(), search.last.end());
  if (conv_may_serve_norm(desc, pass) && engines == Engines::all) {
    Search serving(target, desc, pass, engines, refused);
    if (const auto graph = serving.graph(Form::norm)) {
      serving.add_recommended({2, 0, 1}, *graph, Form::norm);  // few algorithms: each takes a second to compile
    }
    all.insert(all.end(), serving.first.begin(), serving.first.end());
    all.insert(all.end(), serving.last.begin(), serving.last.end());
  }
  return all;
}

}  // namespace lockstep::ops::cudnn

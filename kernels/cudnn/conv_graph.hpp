#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/cudnn/cudnn.hpp>

/// One pass of a convolution as a graph of cuDNN's, and the engines that cuDNN offers for it. Needs no GPU: Target.
namespace lockstep::ops::cudnn {

/// What one graph does of a pass.
enum class Form : unsigned char {
  fused,  ///< all of it: bias added to the sums, output in its own type, gradients added to what is there
  split,  ///< the convolution alone, in desc.dtype; the rest is done by kernels of ours
};

/// Logical order of cuDNN: (N, C, spatial...), for weights (K, C / groups, taps...); the strides say channels last.
struct GraphTensor {
  std::int64_t uid = 0;
  DType dtype = DType::f32;
  std::vector<std::int64_t> dims, strides;
};

/// The names of a plan's operands in a graph.
struct Uid {
  static constexpr std::int64_t a = 1, b = 2, bias = 3, out = 4, sum = 5;
};

/// A convolution as cuDNN takes it. An image of one axis gets a second one of extent 1 in front.
struct ConvGraph {
  ConvPass pass = ConvPass::forward;
  GraphTensor x, weights, y;
  std::optional<GraphTensor> bias;  ///< forward: (1, K, 1..), added in f32 to sums that are never stored
  std::vector<std::int64_t> stride, dilation, pad_before, pad_after;
  bool accumulate = false;  ///< output = result + output
};

/// UnsupportedError for what cuDNN does not have: f64, circular padding.
[[nodiscard]] ConvGraph describe(const ConvDesc& desc, ConvPass pass, Form form);
/// Whether the pass has anything that `split` would do apart.
[[nodiscard]] bool can_split(const ConvDesc& desc, ConvPass pass);

/// One of cuDNN's engines with its settings: all that is needed to have the same plan again with the same version of
/// cuDNN on the same device. As text "eng35:k2=1,k13=0", settings in the order of their numbers; "eng0" without any.
struct Engine {
  std::int64_t index = 0;
  std::vector<std::pair<int, std::int64_t>> knobs;
  bool operator==(const Engine&) const = default;

  [[nodiscard]] std::string text() const;
  /// Takes exactly what text() gives; anything else is nothing.
  [[nodiscard]] static std::optional<Engine> parse(std::string_view text);
};

/// The finalised operation graph with its parts.
class OperationGraph {
 public:
  OperationGraph(const ConvGraph& graph, const Target& target);
  [[nodiscard]] const Descriptor& descriptor() const { return graph_; }

 private:
  Descriptor tensor(const GraphTensor& tensor, bool is_virtual = false);
  std::vector<Descriptor> parts_;
  Descriptor graph_;
};

/// A finalised engine configuration. UnsupportedError when the engine cannot do the graph, or not this way.
class EngineConfig {
 public:
  EngineConfig(const OperationGraph& graph, const Target& target, const Engine& engine);
  [[nodiscard]] const Descriptor& descriptor() const { return config_; }
  [[nodiscard]] bool has(cudnnBackendNumericalNote_t note) const;

 private:
  Descriptor engine_;
  std::vector<Descriptor> knobs_;
  Descriptor config_;
};

/// Whether an engine computes what ConvDesc promises: sums in f32; f32 factors as they are unless desc.tf32; and no FFT
/// or Winograd, whose errors are of another kind, so that a choice made by timing does not change what is computed.
[[nodiscard]] bool allowed(const EngineConfig& config, const ConvDesc& desc);

/// One way to do a whole pass. As text "eng35:k2=1" or "split:eng35:k2=1".
struct Algorithm {
  Form form = Form::fused;
  Engine engine;
  bool operator==(const Algorithm&) const = default;

  [[nodiscard]] std::string text() const;
  /// Takes exactly what text() gives; anything else is nothing.
  [[nodiscard]] static std::optional<Algorithm> parse(std::string_view text);
};

/// What cuDNN's heuristics recommend for the pass, each once and only what is allowed, best guess first: fused before
/// split, in each the first few of mode A, then of B, then of the fallback list. Where they know nothing for fused,
/// engines that can do it with their default settings come after that; before, where split passes through f16 what is
/// f32. Engines that cuDNN calls nondeterministic are behind all others. Some 25 at most; UnsupportedError as
/// describe().
[[nodiscard]] std::vector<Algorithm> algorithms(const Target& target, const ConvDesc& desc, ConvPass pass);

}  // namespace lockstep::ops::cudnn

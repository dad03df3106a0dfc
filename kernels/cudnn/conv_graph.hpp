#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/cudnn/cudnn.hpp>

/// One pass of a convolution as a cuDNN graph, and the engines that cuDNN offers for it. Needs no GPU (see Target).
namespace lockstep::ops::cudnn {

/// How much of a pass one graph does.
enum class Form : unsigned char {
  /// The whole pass: adds the bias to the sums, writes the output in its own type, adds gradients to existing ones.
  fused,
  split,  ///< only the convolution, in desc.dtype; our kernels do the rest
  norm,   ///< the whole pass and what desc.norm asks for
};

/// In cuDNN's logical order: (N, C, spatial...), for weights (K, C / groups, taps...). The strides make it channels
/// last.
struct GraphTensor {
  std::int64_t uid = 0;
  DType dtype = DType::f32;
  std::vector<std::int64_t> dims, strides;
};

/// The ids of a plan's operands in a graph: those of conv2d() and of ConvNormOperands, by whose rows sums and
/// coefficients come one by one.
struct Uid {
  static constexpr std::int64_t a = 1, b = 2, bias = 3, out = 4;
  static constexpr std::int64_t shift = 5, sums = 6, squares = 7, sums2 = 8;  // squares: of y, or sum g * xhat
  static constexpr std::int64_t addend = 9, mask = 10, x = 11, mean = 12, inv_std = 13, x2 = 14, mean2 = 15,
                                inv_std2 = 16;
  static constexpr std::int64_t count = 17;  ///< ids above are of tensors that are never stored
};

/// A convolution in cuDNN's terms. An image with one axis gets a second one of extent 1 in front.
struct ConvGraph {
  ConvPass pass = ConvPass::forward;
  GraphTensor x, weights, y;
  std::optional<GraphTensor> bias;  ///< forward: (1, K, 1..), added in f32 to the sums before they are stored
  std::vector<std::int64_t> stride, dilation, pad_before, pad_after;
  bool accumulate = false;  ///< output = result + output
  /// backward_weights beside 16-bit tensors: the sums pass through an operation that changes nothing to an output in
  /// f32, which no engine of the bare convolution writes.
  bool passes_on = false;
  ConvNorm norm{};  ///< of Form::norm
};

/// UnsupportedError for what cuDNN lacks: f64, circular padding.
[[nodiscard]] ConvGraph describe(const ConvDesc& desc, ConvPass pass, Form form);
/// Whether the pass has a step that `split` does separately.
[[nodiscard]] bool can_split(const ConvDesc& desc, ConvPass pass);

/// One of cuDNN's engines with its settings: enough to make the same plan again with the same version of cuDNN on the
/// same device. As text "eng35:k2=1,k13=0", settings in the order of their numbers; "eng0" without any.
struct Engine {
  std::int64_t index = 0;
  std::vector<std::pair<int, std::int64_t>> knobs;
  bool operator==(const Engine&) const = default;

  [[nodiscard]] std::string text() const;
  /// Accepts exactly the output of text(); empty for anything else.
  [[nodiscard]] static std::optional<Engine> parse(std::string_view text);
};

/// The finalised operation graph with its parts.
class OperationGraph {
 public:
  OperationGraph(const ConvGraph& graph, const Target& target);
  [[nodiscard]] const Descriptor& descriptor() const { return graph_; }

 private:
  struct Parts;
  std::deque<Descriptor> parts_;
  Descriptor graph_;
};

/// A finalised engine configuration. UnsupportedError when the engine does not support the graph or these settings.
class EngineConfig {
 public:
  EngineConfig(const OperationGraph& graph, const Target& target, const Engine& engine);
  [[nodiscard]] const Descriptor& descriptor() const { return config_; }
  [[nodiscard]] bool has(cudnnBackendNumericalNote_t note) const;
  [[nodiscard]] bool compiled_when_planned() const;  ///< takes up to a second, and needs libnvrtc

 private:
  Descriptor engine_;
  std::vector<Descriptor> knobs_;
  Descriptor config_;
};

/// Whether an engine computes what ConvDesc promises: sums in f32, and f32 factors unrounded unless desc.tf32. FFT and
/// Winograd, whose errors are of another kind, are not allowed: a choice made by timing must not change the results.
[[nodiscard]] bool allowed(const EngineConfig& config, const ConvDesc& desc);

/// One way to do a whole pass. As text "eng35:k2=1", "split:eng35:k2=1" or "norm:eng35:k2=1".
struct Algorithm {
  Form form = Form::fused;
  Engine engine;
  bool operator==(const Algorithm&) const = default;

  [[nodiscard]] std::string text() const;
  /// Accepts exactly the output of text(); empty for anything else.
  [[nodiscard]] static std::optional<Algorithm> parse(std::string_view text);
};

/// The allowed algorithms that cuDNN's heuristics recommend for the pass, each once, best guess first. Fused ones come
/// before split ones; within each, the first few of mode A, then of mode B, then of the fallback list. When the
/// heuristics have no fused algorithm, engines that support fused with default settings come after the split ones; they
/// come before them where split would pass f32 values through f16. A bf16 gradient of the weights has fused ones last,
/// because these are compiled at run time. Engines that cuDNN calls nondeterministic come last, and behind them, where
/// desc.norm is wanted, those that serve it. About 25 at most, and 4 for a norm. An engine or a list at which cuDNN
/// fails, with whatever status, is left out; `refused` gets a line for each that it does not merely lack.
/// UnsupportedError as describe().
[[nodiscard]] std::vector<Algorithm> algorithms(const Target& target, const ConvDesc& desc, ConvPass pass,
                                                Engines engines = Engines::all,
                                                std::vector<std::string>* refused = nullptr);

}  // namespace lockstep::ops::cudnn

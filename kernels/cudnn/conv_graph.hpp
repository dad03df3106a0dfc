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

/// Describes a pass of a convolution as a cuDNN graph, and lists the engines that cuDNN offers for this graph. Needs no
/// GPU (see Target).
namespace lockstep::ops::cudnn {

/// The part of a pass that one graph does.
enum class Form : unsigned char {
  /// The whole pass in one graph, with all steps that the pass has after the convolution: the bias, the conversion to
  /// the output's type, and the addition to an existing gradient.
  fused,
  split,  ///< only the convolution, in desc.dtype; lockstep's kernels do the other steps of the pass
  norm,   ///< the whole pass and the work of desc.norm
};

/// A tensor in cuDNN's logical order: (N, C, spatial...), for weights (K, C / groups, taps...). The strides say that
/// the channels come last in memory.
struct GraphTensor {
  std::int64_t uid = 0;
  DType dtype = DType::f32;
  std::vector<std::int64_t> dims, strides;
};

/// The ids of a plan's operands in a graph: the tensors of conv2d() and of ConvNormOperands. Each row of sums and of
/// coefficients that a graph uses has its own id.
struct Uid {
  static constexpr std::int64_t a = 1, b = 2, bias = 3, out = 4;
  static constexpr std::int64_t shift = 5, sums = 6, squares = 7, sums2 = 8;  // in backward, squares = sum of g * xhat
  static constexpr std::int64_t addend = 9, mask = 10, x = 11, mean = 12, inv_std = 13, x2 = 14, mean2 = 15,
                                inv_std2 = 16;
  static constexpr std::int64_t count = 17;  ///< ids from `count` on belong to tensors that are never stored
};

/// A convolution as cuDNN describes it. If images have only one spatial axis, cuDNN gets an axis of extent 1 before it.
struct ConvGraph {
  ConvPass pass = ConvPass::forward;
  GraphTensor x, weights, y;
  std::optional<GraphTensor> bias;  ///< in forward: (1, K, 1..); added in f32 to the sums before these are stored
  std::vector<std::int64_t> stride, dilation, pad_before, pad_after;
  bool accumulate = false;  ///< true if the result is added to the output
  /// True for backward_weights with 16-bit tensors and without accumulate. Then an identity operation after the
  /// convolution copies the sums to an f32 output, because no engine for the convolution alone writes f32.
  bool passes_on = false;
  ConvNorm norm{};  ///< only used with Form::norm
};

/// Returns the graph of a pass in form `form`. Throws UnsupportedError if cuDNN cannot compute the pass: f64, circular
/// padding, or Form::norm where conv_may_serve_norm() is false.
[[nodiscard]] ConvGraph describe(const ConvDesc& desc, ConvPass pass, Form form);
/// Returns true if the pass has a step that Form::split leaves to our kernels.
[[nodiscard]] bool can_split(const ConvDesc& desc, ConvPass pass);

/// One of cuDNN's engines with its settings. An Engine is enough to make the same plan again, with the same version of
/// cuDNN on the same device. The text of an Engine is "eng35:k2=1,k13=0", with settings in the order of their numbers,
/// or "eng0" if there are no settings.
struct Engine {
  std::int64_t index = 0;
  std::vector<std::pair<int, std::int64_t>> knobs;
  bool operator==(const Engine&) const = default;

  [[nodiscard]] std::string text() const;
  /// Returns the engine whose text() is `text`, or nothing if no engine has this text.
  [[nodiscard]] static std::optional<Engine> parse(std::string_view text);
};

/// The finalised operation graph of cuDNN, with the descriptors of its tensors and operations.
class OperationGraph {
 public:
  OperationGraph(const ConvGraph& graph, const Target& target);
  [[nodiscard]] const Descriptor& descriptor() const { return graph_; }

 private:
  struct Parts;
  std::deque<Descriptor> parts_;
  Descriptor graph_;
};

/// A finalised engine configuration. The constructor throws UnsupportedError when the engine does not support the graph
/// or the settings in `engine`.
class EngineConfig {
 public:
  EngineConfig(const OperationGraph& graph, const Target& target, const Engine& engine);
  [[nodiscard]] const Descriptor& descriptor() const { return config_; }
  [[nodiscard]] bool has(cudnnBackendNumericalNote_t note) const;
  [[nodiscard]] bool compiled_when_planned() const;  ///< true if planning compiles the engine (libnvrtc, up to 1 s)

 private:
  Descriptor engine_;
  std::vector<Descriptor> knobs_;
  Descriptor config_;
};

/// Returns true if the engine computes what ConvDesc promises: sums in f32, and f32 factors unrounded unless desc.tf32.
/// FFT and Winograd are not allowed: their rounding errors differ from those of a direct sum, and a choice made by
/// timing must not change the accuracy.
[[nodiscard]] bool allowed(const EngineConfig& config, const ConvDesc& desc);

/// One way to do a whole pass: an engine, used in a form. The text of Form::fused is the engine's text, such as
/// "eng35:k2=1". Form::split and Form::norm add a prefix: "split:eng35:k2=1", "norm:eng7".
struct Algorithm {
  Form form = Form::fused;
  Engine engine;
  bool operator==(const Algorithm&) const = default;

  [[nodiscard]] std::string text() const;
  /// Returns the algorithm whose text() is `text`, or nothing if no algorithm has this text.
  [[nodiscard]] static std::optional<Algorithm> parse(std::string_view text);
};

/// Returns the allowed algorithms that cuDNN's heuristics recommend for the pass, each once: at most 27, and at most 5
/// more for a norm. The order, best guess first, is:
///
///   - Fused algorithms, then split algorithms. Each of these two groups takes the first few algorithms of mode A, then
///     of mode B, then of the fallback list. Exception: for a bf16 gradient of the weights the fused algorithms come
///     after the split algorithms, because cuDNN compiles them at run time.
///   - If the heuristics have no fused algorithm, engines that support Form::fused with their default settings. They
///     come after the split algorithms, or before if the split algorithms would round f32 sums to f16.
///   - Algorithms that cuDNN calls nondeterministic.
///   - If desc.norm is wanted, Form::norm algorithms.
///
/// If cuDNN fails at an engine or at a list, with any status, the engine or the list is left out. Each failure adds a
/// line to `refused`, unless its status only means "not supported". Throws UnsupportedError where describe() does.
[[nodiscard]] std::vector<Algorithm> algorithms(const Target& target, const ConvDesc& desc, ConvPass pass,
                                                Engines engines = Engines::all,
                                                std::vector<std::string>* refused = nullptr);

}  // namespace lockstep::ops::cudnn

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <lockstep/kernels/mlp.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

/// Inference of a chain of small linear layers on the host in one pass (kernels/mlp.hpp), with packed parameters. The
/// parameters are packed again after they have changed.
class MlpPass {
 public:
  /// Returns the pass for `model`, or no value if one of these conditions does not hold:
  /// - the context computes on the host;
  /// - the input is a vector of features (InputKind::values);
  /// - the layers form a chain, and each layer has a DenseForm;
  /// - each layer that is only an activation follows a linear layer without an activation;
  /// - ops::Mlp supports the layers.
  [[nodiscard]] static std::optional<MlpPass> of(Context& context, const Model& model, const ParameterSet& parameters);

  /// Enqueues y = model(x). x (.., inputs) and y (.., outputs) are views as in ops::mlp_forward().
  void run(Context& context, const TensorView& x, const TensorView& y);
  /// Repeats the last run() on memory at other addresses. Each address must be a multiple of the element's size.
  void run_again(Context& context, const void* x, void* y);

  /// Returns `view`, a view of samples, with the axis of features last. If mlp_forward() cannot read the view, or
  /// cannot write the view and `written` is true, returns a view without memory. mlp_forward() takes only f32 and f64
  /// in host memory. `axes` must fit `view`.
  [[nodiscard]] static TensorView samples_of(const TensorView& view, std::string_view axes, bool written);

 private:
  struct Parameter {
    int weight = 0;
    int bias = -1;
  };
  MlpPass(Context& context, const ParameterSet& parameters, const std::vector<ops::MlpLayer>& layers,
          std::vector<Parameter> indices);
  void pack(Context& context);

  const ParameterSet* parameters_;
  std::vector<Parameter> indices_;  ///< parameters of each layer
  ops::Mlp mlp_;
  Buffer packed_;
  TensorView packed_view_;
  std::optional<std::uint64_t> version_;  ///< version of the parameters that are packed
  std::optional<ops::MlpCall> last_;      ///< last call of run()
};

}  // namespace lockstep::nn

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
  /// Returns the pass for a model on features (InputKind::values) of which every layer has a DenseForm, if the first
  /// one with a weight comes first, ops::Mlp supports the layers, and the context computes on the host. Otherwise
  /// nothing.
  [[nodiscard]] static std::optional<MlpPass> of(Context& context, const Model& model, const ParameterSet& parameters);

  /// Enqueues y = model(x). x (.., inputs) and y (.., outputs) are views as in ops::mlp_forward().
  void run(Context& context, const TensorView& x, const TensorView& y);
  /// Does the last run() again with other memory, whose addresses are multiples of the elements' sizes.
  void run_again(Context& context, const void* x, void* y);

  /// Returns the caller's view of samples with the axis of features last, if mlp_forward() can read it, or write it
  /// where `written`: host memory of f32 or f64. Otherwise a view that is not given. `axes` must fit the view.
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

#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/mlp.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct MlpParams {
  std::vector<std::int64_t> widths;  ///< number of inputs, then the number of outputs of each layer
  std::int64_t samples = 1;
  ops::Activation kind = ops::Activation::tanh;  ///< activation of all layers but the last
  DType dtype = DType::f32;
  bool bias = true;
};

inline std::vector<ops::MlpLayer> mlp_layers(const MlpParams& p) {
  std::vector<ops::MlpLayer> layers;
  for (std::size_t i = 0; i + 1 < p.widths.size(); ++i) {
    const bool last = i + 2 == p.widths.size();
    layers.push_back({p.widths[i], p.widths[i + 1], last ? ops::Activation::identity : p.kind});
  }
  return layers;
}

/// Makes a test case that packs the parameters of an Mlp and computes its outputs. Inputs: x, then for each layer the
/// weight and, if p.bias, the bias; output: y.
inline OpCase mlp_case(const MlpParams& p) {
  const std::vector<ops::MlpLayer> layers = mlp_layers(p);
  const auto mlp = std::make_shared<const ops::Mlp>(p.dtype, layers);
  OpCase item;
  item.name = concat("mlp ", ops::name_of(p.kind), ' ', p.dtype, ' ', p.samples, " of");
  item.inputs = {{"x", Shape{p.samples, p.widths.front()}, p.dtype, normal(1)}};
  std::uint64_t seed = 2;
  for (const ops::MlpLayer& layer : layers) {
    item.name += concat(' ', layer.inputs, '-', layer.outputs);
    const double scale = 1 / std::sqrt(static_cast<double>(layer.inputs));
    item.inputs.push_back({"weight", Shape{layer.outputs, layer.inputs}, p.dtype, normal(seed++, scale)});
    add_if(p.bias, item.inputs, {"bias", Shape{layer.outputs}, p.dtype, normal(seed++)});
    item.flops += 2.0 * static_cast<double>(layer.inputs * layer.outputs * p.samples);
  }
  item.name += p.bias ? "" : " without bias";
  item.dtype = p.dtype;
  item.outputs = {{"y", Shape{p.samples, p.widths.back()}, p.dtype, Generator()}};
  item.workspace_bytes = [mlp](Context&) { return mlp->packed_bytes(); };
  item.run = [mlp, bias = p.bias](Context& context, Views in, Views out, const TensorView& workspace) {
    const std::size_t step = bias ? 2 : 1;
    for (std::size_t i = 0; i < mlp->layers().size(); ++i) {
      ops::mlp_pack(context, *mlp, static_cast<int>(i), in[1 + step * i], bias ? in[2 + step * i] : TensorView(),
                    workspace);
    }
    ops::mlp_forward(context, *mlp, workspace, in[0], out[0]);
  };
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-5;
  return item;
}

inline std::vector<OpCase> mlp_cases() {
  using ops::Activation;
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t samples : {0, 1, 2, 5, 16, 33, 70}) {
      items.push_back(mlp_case({.widths = {4, 32, 32, 1}, .samples = samples, .dtype = dtype}));
      items.push_back(mlp_case({.widths = {1, 3, 17, 33, 5}, .samples = samples, .dtype = dtype, .bias = false}));
    }
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::tanh,
                                  Activation::sigmoid, Activation::relu, Activation::identity}) {
      items.push_back(mlp_case({.widths = {3, 33, 17, 2}, .samples = 21, .kind = kind, .dtype = dtype}));
    }
    items.push_back(mlp_case({.widths = {64, 100}, .samples = 130, .dtype = dtype}));
  }
  items.push_back(mlp_case({.widths = {256, 100, 256}, .samples = 35}));
  return items;
}

}  // namespace lockstep::testing

#include <lockstep/nn/step/parts/mlp_pass.hpp>

#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

std::optional<MlpPass> MlpPass::of(Context& context, const Model& model, const ParameterSet& parameters) {
  if (context.device().kind != DeviceKind::cpu || model.input_kind() != InputKind::values ||
      model.input_shape().rank() != 1) {
    return std::nullopt;
  }
  std::vector<ops::MlpLayer> layers;
  std::vector<Parameter> indices;
  for (std::size_t i = 1; i < model.nodes().size(); ++i) {
    const Node& node = model.nodes()[i];
    const auto form = node.layer->dense_form();
    if (!form || node.inputs.size() != 1 || node.inputs[0].index + 1 != static_cast<int>(i)) {
      return std::nullopt;
    }
    if (!form->weight.empty()) {
      const int weight = parameters.find(form->weight);
      const Shape& dims = parameters.parameters()[static_cast<std::size_t>(weight)].spec.dims;
      layers.push_back({.inputs = dims[1], .outputs = dims[0], .activation = form->activation});
      indices.push_back({weight, form->bias.empty() ? -1 : parameters.find(form->bias)});
    } else if (form->activation != ops::Activation::identity) {
      if (layers.empty() || layers.back().activation != ops::Activation::identity) {
        return std::nullopt;
      }
      layers.back().activation = form->activation;
    }
  }
  if (!ops::Mlp::supports(parameters.weight_dtype(), layers)) {
    return std::nullopt;
  }
  return MlpPass(context, parameters, layers, std::move(indices));
}

MlpPass::MlpPass(Context& context, const ParameterSet& parameters, const std::vector<ops::MlpLayer>& layers,
                 std::vector<Parameter> indices)
    : parameters_(&parameters),
      indices_(std::move(indices)),
      mlp_(parameters.weight_dtype(), layers),
      packed_(mlp_.packed_bytes(), context),
      packed_view_(packed_.data(), DType::u8, context.device(), {static_cast<std::int64_t>(packed_.bytes())}) {}

void MlpPass::pack(Context& context) {
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    const auto [weight, bias] = indices_[i];
    ops::mlp_pack(context, mlp_, static_cast<int>(i), parameters_->logical(weight, parameters_->weights()),
                  bias < 0 ? TensorView() : parameters_->logical(bias, parameters_->values()), packed_view_);
  }
  version_ = parameters_->version();
}

void MlpPass::run(Context& context, const TensorView& x, const TensorView& y) {
  last_.emplace(mlp_, packed_view_, x, y);
  run_again(context, x.data, y.data);
}

void MlpPass::run_again(Context& context, const void* x, void* y) {
  if (version_ != parameters_->version()) {
    pack(context);
  }
  ops::mlp_run(context, *last_, x, y);
}

TensorView MlpPass::samples_of(const TensorView& view, std::string_view axes, bool written) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0;
  const int rank = view.shape.rank();
  if (view.device.kind != DeviceKind::cpu || (view.dtype != DType::f32 && view.dtype != DType::f64) || !aligned ||
      rank == Shape::kMaxRank) {
    return {};
  }
  TensorView samples;
  samples.data = view.data;
  samples.dtype = view.dtype;
  samples.device = view.device;
  int features = -1;
  for (int axis = 0; axis < rank; ++axis) {
    if (written && view.strides[axis] == 0 && view.shape[axis] > 1) {
      return {};
    }
    if (axes.empty() ? axis == 1 : axes[static_cast<std::size_t>(axis)] != 'n') {
      features = axis;
    } else {
      samples.shape.push_back(view.shape[axis]);
      samples.strides.push_back(view.strides[axis]);
    }
  }
  samples.shape.push_back(features < 0 ? 1 : view.shape[features]);
  samples.strides.push_back(features < 0 ? 1 : view.strides[features]);
  return samples;
}

}  // namespace lockstep::nn

#include <lockstep/kernels/mlp.hpp>

#include <algorithm>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

namespace lockstep::ops {
namespace {

std::size_t bytes_of(DType dtype, std::span<const MlpLayer> layers) {
  std::size_t bytes = 0;
  for (const MlpLayer& layer : layers) {
    bytes += static_cast<std::size_t>(backend::mlp_packed_elements(dtype, layer)) * size_of(dtype);
  }
  return bytes;
}

void require_packed(const char* op, const Mlp& mlp, const TensorView& packed) {
  require_workspace(op, packed, mlp.packed_bytes(), Mlp::kAlignment);
}

void require_samples(const char* name, const TensorView& view, std::int64_t width) {
  require<DTypeError>(view.dtype == DType::f32 || view.dtype == DType::f64, "mlp_forward: ", name, " is ", view.dtype,
                      ", expected f32 or f64");
  require<ShapeError>(view.shape.rank() >= 1 && view.shape.back() == width, "mlp_forward: ", name, " is ", view.shape,
                      ", expected (.., ", width, ")");
}

}  // namespace

bool Mlp::supports(DType dtype, std::span<const MlpLayer> layers) {
  require_processor();  // the sizes below depend on the variant of the host kernels, and a caller may have no Context
  if (layers.empty() || layers.size() > kMostLayers || (dtype != DType::f32 && dtype != DType::f64)) {
    return false;
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto fits = [](std::int64_t width) { return width >= 1 && width <= kMostWidth; };
    if (!fits(layers[i].inputs) || !fits(layers[i].outputs) || (i > 0 && layers[i].inputs != layers[i - 1].outputs)) {
      return false;
    }
  }
  return bytes_of(dtype, layers) <= kMostBytes;
}

Mlp::Mlp(DType dtype, std::span<const MlpLayer> layers) : dtype_(dtype), count_(layers.size()), packed_bytes_(0) {
  require<UsageError>(
      supports(dtype, layers), "mlp: ", layers.size(), " layers in ", dtype,
      ", expected f32 or f64 and layers that each take what the one before makes, within the limits of Mlp");
  std::copy(layers.begin(), layers.end(), layers_.begin());
  constexpr std::int64_t kLine = 64;  // multiple of the number of elements of every register
  for (const MlpLayer& layer : layers) {
    widest_ = std::max({widest_, align_up(layer.inputs, kLine), align_up(layer.outputs, kLine)});
  }
  packed_bytes_ = bytes_of(dtype, layers);
  costs_ = backend::mlp_costs(dtype, layers);
}

void mlp_pack(Context& context, const Mlp& mlp, int layer, const TensorView& weight, const TensorView& bias,
              const TensorView& packed) {
  require_on(context.device(), "mlp_pack", {&weight, &bias, &packed});
  require<UsageError>(layer >= 0 && layer < static_cast<int>(mlp.layers().size()), "mlp_pack: layer is ", layer,
                      ", expected 0 to ", static_cast<std::int64_t>(mlp.layers().size()) - 1);
  const MlpLayer& here = mlp.layers()[static_cast<std::size_t>(layer)];
  require<DTypeError>(weight.dtype == mlp.dtype() && (!bias.given() || bias.dtype == mlp.dtype()),
                      "mlp_pack: weight is ", weight.dtype, ", bias is ", bias.dtype, ", expected ", mlp.dtype());
  require<ShapeError>(weight.shape == Shape({here.outputs, here.inputs}), "mlp_pack: weight is ", weight.shape,
                      ", expected ", Shape{here.outputs, here.inputs});
  require<ShapeError>(!bias.given() || bias.shape == Shape({here.outputs}), "mlp_pack: bias is ", bias.shape,
                      ", expected ", Shape{here.outputs});
  require_packed("mlp_pack", mlp, packed);
  const Mlp* const all = &mlp;
  dispatch(context, "mlp_pack", LOCKSTEP_BACKEND(mlp_pack, *all, layer, weight, bias, packed));
}

MlpSamples::MlpSamples(const TensorView& view)
    : dtype(view.dtype), count(1), features(view.shape.back()), step(view.strides.back()) {
  for (int a = view.shape.rank() - 1; a-- > 0;) {
    const std::int64_t extent = view.shape[a];
    count *= extent;
    Axis* const last = axes > 0 ? &axis[static_cast<std::size_t>(axes - 1)] : nullptr;
    if (last != nullptr && view.strides[a] == last->stride * last->extent) {
      last->extent *= extent;
    } else if (extent != 1) {
      axis[static_cast<std::size_t>(axes++)] = {extent, view.strides[a]};
    }
  }
}

MlpCall::MlpCall(const Mlp& of, const TensorView& packed, const TensorView& x, const TensorView& y)
    : mlp(&of),
      parameters(packed.data),
      from((require_samples("x", x, of.layers().front().inputs), x)),
      to((require_samples("y", y, of.layers().back().outputs), y)) {
  require_packed("mlp_forward", of, packed);
  require<ShapeError>(from.count == to.count, "mlp_forward: x is ", x.shape, ", y is ", y.shape,
                      ", expected as many samples in both");
}

void mlp_run(Context& context, const MlpCall& call, const void* x, void* y) {
  dispatch(context, "mlp_forward", LOCKSTEP_BACKEND(mlp_run, call, x, y));
}

void mlp_forward(Context& context, const Mlp& mlp, const TensorView& packed, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "mlp_forward", {&packed, &x, &y});
  mlp_run(context, MlpCall(mlp, packed, x, y), x.data, y.data);
}

}  // namespace lockstep::ops

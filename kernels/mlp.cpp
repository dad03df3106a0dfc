#include <lockstep/kernels/mlp.hpp>

#include <lockstep/kernels/operands.hpp>

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
  if (layers.empty() || (dtype != DType::f32 && dtype != DType::f64)) {
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

Mlp::Mlp(DType dtype, std::span<const MlpLayer> layers)
    : dtype_(dtype), layers_(layers.begin(), layers.end()), packed_bytes_(0) {
  require<UsageError>(supports(dtype, layers), "mlp: ", layers.size(), " layers in ", dtype,
                      ", expected a chain of f32 or f64 within the limits of Mlp");
  packed_bytes_ = bytes_of(dtype, layers);
  costs_ = backend::mlp_costs(dtype, layers);
}

void mlp_pack(Context& context, const Mlp& mlp, int layer, const TensorView& weight, const TensorView& bias,
              const TensorView& packed) {
  require_on(context.device(), "mlp_pack", {&weight, &bias, &packed});
  require<UsageError>(layer >= 0 && layer < static_cast<int>(mlp.layers().size()), "mlp_pack: layer is ", layer,
                      ", expected one of ", mlp.layers().size());
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

void mlp_forward(Context& context, const Mlp& mlp, const TensorView& packed, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "mlp_forward", {&packed, &x, &y});
  require_packed("mlp_forward", mlp, packed);
  const std::int64_t inputs = mlp.layers().front().inputs;
  const std::int64_t outputs = mlp.layers().back().outputs;
  require_samples("x", x, inputs);
  require_samples("y", y, outputs);
  require<ShapeError>(x.numel() / inputs == y.numel() / outputs, "mlp_forward: x is ", x.shape, ", y is ", y.shape,
                      ", expected as many samples in both");
  const Mlp* const all = &mlp;
  dispatch(context, "mlp_forward", LOCKSTEP_BACKEND(mlp_forward, *all, packed, x, y));
}

}  // namespace lockstep::ops

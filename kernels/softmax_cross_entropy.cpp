#include <lockstep/kernels/softmax_cross_entropy.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

void require_logits(std::string_view op, const TensorView& logits) {
  require<ShapeError>(logits.shape.rank() >= 2 && logits.shape.back() >= 1, op, ": logits are ", logits.shape,
                      ", expected (N, K) or (N, ..., K) with K at least 1");
}

}  // namespace

std::size_t softmax_cross_entropy_workspace_bytes(const Context& context, const TensorView& logits) {
  require_logits("softmax_cross_entropy", logits);
  return context.device().kind == DeviceKind::cpu
             ? 0
             : static_cast<std::size_t>(logits.numel() / logits.shape.back()) * sizeof(backend::PositionLoss);
}

void softmax_cross_entropy(Context& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& weights, const TensorView& valid, const TensorView& scale,
                           double smoothing, const TensorView& dlogits, const TensorView& metrics,
                           const TensorView& workspace) {
  constexpr std::string_view kOp = "softmax_cross_entropy";
  require_on(context.device(), kOp, {&logits, &labels, &weights, &valid, &scale, &dlogits, &metrics, &workspace});
  require_logits(kOp, logits);
  require_compute_dtype(kOp, "logits", logits);
  Shape positions;
  for (int axis = 0; axis + 1 < logits.shape.rank(); ++axis) {
    positions.push_back(logits.shape[axis]);
  }
  require<ShapeError>(labels.shape == positions, kOp, ": labels are ", labels.shape, ", logits ", logits.shape,
                      ", expected one label a position, ", positions);
  require<DTypeError>(labels.dtype == DType::i32, kOp, ": labels are ", labels.dtype, ", expected i32");
  require_weights(kOp, weights, accumulation_dtype(logits.dtype), positions);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_scalar_if_given(kOp, {scale, "scale"}, accumulation_dtype(logits.dtype));
  require<UsageError>(smoothing >= 0 && smoothing < 1, kOp, ": smoothing is ", smoothing,
                      ", expected at least 0 and below 1");
  if (dlogits.given()) {
    require<ShapeError>(dlogits.shape == logits.shape, kOp, ": dlogits are ", dlogits.shape, ", logits ", logits.shape,
                        ", expected both of one shape");
    require<DTypeError>(dlogits.dtype == logits.dtype, kOp, ": dlogits are ", dlogits.dtype, ", logits ", logits.dtype,
                        ", expected both of one type");
  }
  require<ShapeError>(metrics.shape == Shape{3}, kOp, ": metrics are ", metrics.shape, ", expected (3)");
  require<DTypeError>(metrics.dtype == DType::f64, kOp, ": metrics are ", metrics.dtype, ", expected f64");
  for (const TensorView* view : {&logits, &labels, &dlogits, &metrics}) {
    require<ShapeError>(view->is_contiguous(), kOp, ": a tensor ", view->shape, " with strides ", view->strides,
                        ", expected contiguous tensors");
  }
  if (dlogits.given()) {
    require_same_or_apart(kOp, {dlogits, "dlogits"}, {logits, "logits"});
    require_apart(kOp, {dlogits, "dlogits"},
                  {{labels, "labels"}, {weights, "weights"}, {valid, "valid"}, {scale, "scale"}});
  }
  require_apart(kOp, {metrics, "metrics"},
                {{logits, "logits"},
                 {labels, "labels"},
                 {weights, "weights"},
                 {valid, "valid"},
                 {scale, "scale"},
                 {dlogits, "dlogits"}});
  if (const std::size_t bytes = softmax_cross_entropy_workspace_bytes(context, logits); bytes > 0) {
    require_workspace(kOp, workspace, bytes, 8);
    require_apart(kOp, {workspace, "workspace"},
                  {{logits, "logits"},
                   {labels, "labels"},
                   {weights, "weights"},
                   {valid, "valid"},
                   {scale, "scale"},
                   {dlogits, "dlogits"},
                   {metrics, "metrics"}});
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(softmax_cross_entropy, logits, labels, weights, valid, scale, smoothing, dlogits, metrics,
                            workspace));
}

}  // namespace lockstep::ops

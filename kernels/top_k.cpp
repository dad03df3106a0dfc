#include <lockstep/kernels/top_k.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

std::size_t top_k_workspace_bytes(const Context& context, const TensorView& logits) {
  require<ShapeError>(logits.shape.rank() == 2, "top_k: logits are ", logits.shape, ", expected (N, K)");
  return context.device().kind == DeviceKind::cpu ? 0 : static_cast<std::size_t>(logits.shape[0]);
}

void top_k_correct(Context& context, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                   const TensorView& valid, int k, const TensorView& result, const TensorView& workspace) {
  constexpr std::string_view kOp = "top_k_correct";
  require_on(context.device(), kOp, {&logits, &labels, &weights, &valid, &result, &workspace});
  require_alike(kOp, {{logits, "logits"}});
  const std::size_t bytes = top_k_workspace_bytes(context, logits);
  require_tensor(kOp, {labels, "labels"}, DType::i32, Shape{logits.shape[0]});
  require_weights(kOp, weights, accumulation_dtype(logits.dtype), labels.shape);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_scalar(kOp, {result, "result"}, DType::f64);
  require<UsageError>(k >= 1 && k <= logits.shape[1], kOp, ": k is ", k, ", logits are ", logits.shape,
                      ", expected 1 to ", logits.shape[1]);
  require_apart(kOp, {result, "result"},
                {{logits, "logits"}, {labels, "labels"}, {weights, "weights"}, {valid, "valid"}});
  if (bytes > 0) {
    require_workspace(kOp, workspace, bytes, 1);
    require_apart(kOp, {workspace, "workspace"},
                  {{logits, "logits"}, {labels, "labels"}, {weights, "weights"}, {valid, "valid"}, {result, "result"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(top_k_correct, logits, labels, weights, valid, k, result, workspace));
}

}  // namespace lockstep::ops

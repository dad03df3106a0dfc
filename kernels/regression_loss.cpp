#include <lockstep/kernels/regression_loss.hpp>

#include <cmath>
#include <string_view>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops {

std::size_t regression_loss_workspace_bytes(const Context& context, const TensorView& prediction) {
  return sum_workspace_bytes(context, prediction);
}

void regression_loss(Context& context, const RegressionLossOptions& options, const TensorView& prediction,
                     const TensorView& target, const TensorView& weights, const TensorView& valid,
                     const TensorView& scale, const TensorView& dprediction, const TensorView& metrics,
                     const TensorView& workspace) {
  constexpr std::string_view kOp = "regression_loss";
  require_on(context.device(), kOp,
             {&prediction, &target, &weights, &valid, &scale, &dprediction, &metrics, &workspace});
  require<UsageError>(options.kind <= RegressionLoss::huber, kOp, ": kind is ", static_cast<int>(options.kind),
                      ", expected mse, l1 or huber");
  require<UsageError>(options.kind != RegressionLoss::huber || (options.delta > 0 && std::isfinite(options.delta)), kOp,
                      ": delta is ", options.delta, ", expected a positive, finite number");
  require_alike(kOp, {{prediction, "prediction"}, {target, "target"}});
  const Shape& shape = prediction.shape;
  require<ShapeError>(shape.rank() >= 1 && (shape[0] == 0 || prediction.numel() > 0), kOp, ": prediction is ", shape,
                      ", expected (N, ...) with an element for each sample");
  require_weights(kOp, weights, accumulation_dtype(prediction.dtype), shape);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_scalar_if_given(kOp, {scale, "scale"}, accumulation_dtype(prediction.dtype));
  require_tensor(kOp, {metrics, "metrics"}, DType::f64, Shape{3});
  if (dprediction.given()) {
    require_alike(kOp, {{prediction, "prediction"}, {dprediction, "dprediction"}});
    require_same_or_apart(kOp, {dprediction, "dprediction"}, {prediction, "prediction"});
    require_apart(kOp, {dprediction, "dprediction"},
                  {{target, "target"}, {weights, "weights"}, {valid, "valid"}, {scale, "scale"}});
  }
  require_apart(kOp, {metrics, "metrics"},
                {{prediction, "prediction"},
                 {target, "target"},
                 {weights, "weights"},
                 {valid, "valid"},
                 {scale, "scale"},
                 {dprediction, "dprediction"}});
  if (const std::size_t bytes = regression_loss_workspace_bytes(context, prediction); bytes > 0) {
    require_workspace(kOp, workspace, bytes, alignof(double));
    require_apart(kOp, {workspace, "workspace"},
                  {{prediction, "prediction"},
                   {target, "target"},
                   {weights, "weights"},
                   {valid, "valid"},
                   {scale, "scale"},
                   {dprediction, "dprediction"},
                   {metrics, "metrics"}});
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(regression_loss, options, prediction, target, weights, valid, scale, dprediction, metrics,
                            workspace));
}

}  // namespace lockstep::ops

#include <lockstep/kernels/loss_scale.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void require_loss_scale_options(std::string_view op, const LossScaleOptions& options) {
  const auto& [growth, backoff, interval, least, most] = options;
  constexpr double kMost = 3e38;  // largest allowed growth and bounds of the scale, within the range of f32
  require<UsageError>(growth > 1 && growth <= kMost, op, ": growth is ", growth, ", expected above 1");
  require<UsageError>(backoff > 0 && backoff < 1, op, ": backoff is ", backoff, ", expected 0 < value < 1");
  require<UsageError>(interval >= 1, op, ": interval is ", interval, ", expected at least 1");
  require<UsageError>(least >= 1e-37 && least <= most && most <= kMost, op, ": bounds are ", least, " and ", most,
                      ", expected 1e-37 to 3e38 in this order");
}

void loss_scale_update(Context& context, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good) {
  constexpr std::string_view kOp = "loss_scale_update";
  require_on(context.device(), kOp, {&skip, &scale, &good});
  require<DTypeError>(scale.dtype == DType::f32 || scale.dtype == DType::f64, kOp, ": scale is ", scale.dtype,
                      ", expected f32 or f64");
  require_scalar(kOp, {skip, "skip"}, DType::i32);
  require_scalar(kOp, {scale, "scale"}, scale.dtype);
  require_scalar(kOp, {good, "good"}, DType::i64);
  require_apart(kOp, {scale, "scale"}, {{skip, "skip"}, {good, "good"}});
  require_apart(kOp, {good, "good"}, {{skip, "skip"}});
  require_loss_scale_options(kOp, options);
  dispatch(context, kOp, LOCKSTEP_BACKEND(loss_scale_update, options, skip, scale, good));
}

}  // namespace lockstep::ops

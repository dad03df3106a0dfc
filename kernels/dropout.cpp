#include <lockstep/kernels/dropout.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

std::uint32_t backend::dropout_threshold(double rate) {
  return static_cast<std::uint32_t>(std::min(std::nearbyint(rate * 0x1p32), 0x1p32 - 1));
}

void dropout(Context& context, const DropoutDesc& desc, const TensorView& sample_ids, const TensorView& epoch,
             const TensorView& x, const TensorView& y) {
  constexpr std::string_view kOp = "dropout";
  require_on(context.device(), kOp, {&sample_ids, &epoch, &x, &y});
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require<ShapeError>(x.shape.rank() >= 1, kOp, ": x is ", x.shape, ", expected (N, ...)");
  require<ShapeError>(sample_ids.shape == Shape{x.shape[0]}, kOp, ": sample_ids are ", sample_ids.shape, ", x is ",
                      x.shape, ", expected one id a sample");
  require<DTypeError>(sample_ids.dtype == DType::i64, kOp, ": sample_ids are ", sample_ids.dtype, ", expected i64");
  require<ShapeError>(sample_ids.is_contiguous(), kOp, ": sample_ids ", sample_ids.shape, " with strides ",
                      sample_ids.strides, " are not contiguous, expected a contiguous tensor");
  require_scalar(kOp, {epoch, "epoch"}, DType::i64);
  require_same_or_apart(kOp, {y, "y"}, {x, "x"});
  require<ShapeError>(!overlaps(y, sample_ids) && !overlaps(y, epoch), kOp,
                      ": y overlaps sample_ids or epoch, expected memory of its own for each");
  require<UsageError>(desc.rate >= 0 && desc.rate < 1, kOp, ": rate is ", desc.rate,
                      ", expected at least 0 and below 1");
  dispatch(context, kOp, LOCKSTEP_BACKEND(dropout, desc, sample_ids, epoch, x, y));
}

}  // namespace lockstep::ops

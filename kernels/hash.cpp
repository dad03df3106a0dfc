#include <lockstep/kernels/hash.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void hash_range(Context& context, const TensorView& x, const TensorView& result) {
  constexpr std::string_view kOp = "hash_range";
  require_on(context.device(), kOp, {&x, &result});
  require<ShapeError>(x.given(), kOp, ": x is not given, expected a tensor");
  require<ShapeError>(x.is_contiguous(), kOp, ": x ", x.shape, " with strides ", x.strides,
                      " is not contiguous, expected a contiguous tensor");
  require_scalar(kOp, {result, "result"}, DType::u64);
  require<ShapeError>(!overlaps(result, x), kOp, ": result overlaps x, expected memory of its own for each");
  dispatch(context, kOp, LOCKSTEP_BACKEND(hash_range, x, result));
}

}  // namespace lockstep::ops

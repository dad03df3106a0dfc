#include <lockstep/kernels/scale.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void scale(Context& context, const TensorView& factor, const TensorView& x, const TensorView& y) {
  constexpr std::string_view kOp = "scale";
  require_on(context.device(), kOp, {&factor, &x, &y});
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require_scalar(kOp, {factor, "factor"}, accumulation_dtype(x.dtype));
  require_same_or_apart(kOp, {y, "y"}, {x, "x"});
  require<ShapeError>(!overlaps(y, factor), kOp, ": y overlaps factor, expected memory of its own for each");
  dispatch(context, kOp, LOCKSTEP_BACKEND(scale, factor, x, y));
}

}  // namespace lockstep::ops

#include <lockstep/kernels/lerp.hpp>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/kernels/strided_copy.hpp>

namespace lockstep::ops {

void lerp(Context& context, double weight, const TensorView& x, const TensorView& y) {
  constexpr std::string_view kOp = "lerp";
  require_on(context.device(), kOp, {&x, &y});
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require<ShapeError>(!overlaps(x, y), kOp, ": y overlaps x, expected memory of its own for each");
  require<UsageError>(weight >= 0 && weight <= 1, kOp, ": the weight is ", weight, ", expected 0 to 1");
  if (weight == 1) {  // a copy, because the formula would give NaN for infinite y
    strided_copy(context, x, y);
    return;
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(lerp, weight, x, y));
}

}  // namespace lockstep::ops

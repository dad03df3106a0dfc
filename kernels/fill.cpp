#include <lockstep/kernels/fill.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

namespace lockstep::ops {
namespace {

/// Returns true if `dtype` can hold `value`: for an integer type, the truncated value must lie in the type's range.
bool fits(double value, DType dtype) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);  // one more than the largest value, exact
      return std::trunc(value) >= static_cast<double>(std::numeric_limits<T>::min()) && value < end;
    } else {
      return true;
    }
  });
}

}  // namespace

void fill(Context& context, double value, const TensorView& out) {
  require<ShapeError>(out.given(), "fill: out is not given, expected a tensor");
  require_on(context.device(), "fill", {&out});
  require<ShapeError>(out.is_contiguous(), "fill: out is ", out.shape, " with strides ", out.strides,
                      ", expected a contiguous tensor");
  require<UsageError>(fits(value, out.dtype), "fill: value is ", value, ", expected one that ", out.dtype, " can hold");
  dispatch(context, "fill", LOCKSTEP_BACKEND(fill, value, out));
}

}  // namespace lockstep::ops

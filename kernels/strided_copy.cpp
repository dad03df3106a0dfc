#include <lockstep/kernels/strided_copy.hpp>

#include <lockstep/runtime/detail/copy_loops.hpp>

namespace lockstep::ops {

void strided_copy(Context& context, const TensorView& src, const TensorView& dst) {
  require_on(context.device(), "strided_copy", {&src, &dst});
  require_copyable("strided_copy", src, dst);
  dispatch(context, "strided_copy", LOCKSTEP_BACKEND(strided_copy, src, dst));
}

}  // namespace lockstep::ops

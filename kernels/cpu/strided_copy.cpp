#include <lockstep/kernels/strided_copy.hpp>

#include <lockstep/runtime/detail/copy_loops.hpp>

namespace lockstep::ops::backend {

void strided_copy(CpuContext& context, const TensorView& src, const TensorView& dst) {
  if (src.numel() > 0) {
    copy_on_host(context, src, dst);
  }
}

}  // namespace lockstep::ops::backend

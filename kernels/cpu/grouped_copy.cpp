#include <lockstep/kernels/grouped_copy.hpp>

#include <lockstep/runtime/detail/copy_loops.hpp>

namespace lockstep::ops::backend {

void grouped_copy(CpuContext& context, std::span<const CopyPair> pairs) {
  for (const auto& [src, dst] : pairs) {
    if (src.numel() > 0) {
      copy_on_host(context, src, dst);
    }
  }
}

}  // namespace lockstep::ops::backend

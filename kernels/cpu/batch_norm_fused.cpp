#include <lockstep/kernels/batch_norm_fused.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/detail/batch_norm_tiling.hpp>

namespace lockstep::ops::backend {

/// For an H100 with 132 multiprocessors of 228 KB. Registers allow two blocks each; of a block the driver takes 1 KB
/// and the kernels' own variables up to 24.
bool batch_norm_fits(const CpuContext& /*context*/, const TensorView& x, NormPass pass) {
  const std::int64_t channels = x.shape.back();
  const int per_column = 16 / static_cast<int>(size_of(x.dtype));
  const batch_norm::Tiling tiling(x.numel() / channels, channels, channels % per_column == 0 ? per_column : 1);
  const auto resident = [](std::size_t bytes) {
    constexpr std::size_t kOwn = std::size_t{25} * 1024;
    return 132 * static_cast<std::int64_t>(std::min<std::size_t>(2, std::size_t{228} * 1024 / (bytes + kOwn)));
  };
  return batch_norm::fused_residence(tiling, per_column, pass == NormPass::forward ? 1 : 2, resident).blocks > 0;
}

}  // namespace lockstep::ops::backend

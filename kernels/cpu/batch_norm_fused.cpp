#include <lockstep/kernels/batch_norm_fused.hpp>

namespace lockstep::ops::backend {

bool batch_norm_fits(const CpuContext& /*context*/, const TensorView& x, NormPass pass) {
  return batch_norm_fits_chip(ChipMemory(), x, pass);
}

}  // namespace lockstep::ops::backend

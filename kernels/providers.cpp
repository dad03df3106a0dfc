#include <lockstep/kernels/providers.hpp>

namespace lockstep::ops {

std::span<const ConvProvider> conv_providers() {
  static const ConvProvider kTable[] = {
#if LOCKSTEP_HAS_ONEDNN
    onednn::kConv,
#endif
    reference::kConv,
#if LOCKSTEP_HAS_CUDA
    plain_cuda::kConv,
#endif
  };
  return kTable;
}

std::span<const MatmulProvider> matmul_providers() {
  static const MatmulProvider kTable[] = {
#if LOCKSTEP_HAS_ONEDNN
    onednn::kMatmul,
#endif
    reference::kMatmul,
#if LOCKSTEP_HAS_CUBLASLT
    cublaslt::kMatmul,
#endif
#if LOCKSTEP_HAS_CUDA
    plain_cuda::kMatmul,
#endif
  };
  return kTable;
}

}  // namespace lockstep::ops

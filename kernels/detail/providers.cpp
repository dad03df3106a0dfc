#include <lockstep/kernels/detail/providers.hpp>

#include <set>

#include <lockstep/runtime/base/version.hpp>

namespace lockstep::ops {

std::span<const ConvProvider> conv_providers() {
  static const ConvProvider kTable[] = {
#if LOCKSTEP_HAS_ONEDNN
    onednn::kConv,
#endif
#if LOCKSTEP_HAS_CUDNN
    cudnn::kConv,
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

std::string library_versions(DeviceKind kind) {
  std::set<std::string> found{"lockstep " + version()};
  const auto add = [&](const auto& providers) {
    for (const auto& provider : providers) {
      if (provider.device == kind && provider.version != nullptr) {
        found.insert(std::string(provider.name) + ' ' + provider.version());
      }
    }
  };
  add(conv_providers());
  add(matmul_providers());
  std::string text;
  for (const std::string& one : found) {
    text += (text.empty() ? "" : ", ") + one;
  }
  return text;
}

}  // namespace lockstep::ops

#include <lockstep/kernels/detail/providers.hpp>

#include <set>

#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

namespace lockstep::ops {

std::span<const ConvProvider> conv_providers() {
  require_processor();  // the variant of the host kernels is chosen before the table is made
  static const ConvProvider kTable[] = {
#if LOCKSTEP_HAS_ONEDNN
    onednn::kConv,
#endif
#if LOCKSTEP_HAS_CUDNN
    cudnn::kConv,
#endif
    reference::conv_provider(),
#if LOCKSTEP_HAS_CUDA
    plain_cuda::kConv,
#endif
  };
  return kTable;
}

std::span<const MatmulProvider> matmul_providers() {
  require_processor();
  static const MatmulProvider kTable[] = {
#if LOCKSTEP_HAS_ONEDNN
    onednn::kMatmul,
#endif
    reference::matmul_provider(),
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
  const std::string_view variant = kind == DeviceKind::cpu ? chosen_variant() : std::string_view();
  std::set<std::string> found{concat("lockstep ", version(), variant.empty() ? "" : " ", variant)};
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

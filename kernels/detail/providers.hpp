#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/library_versions.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/base/error.hpp>

/// Which libraries can plan convolutions and matrix products. Private to the kernels library.
namespace lockstep::ops {

/// One library, or our own loops, behind plan_conv2d(). The desc is checked; the context is on the provider's device.
struct ConvProvider {
  std::string_view name;  ///< the part of a choice before the colon
  DeviceKind device;
  /// The choices that plan() takes for this pass, best guess first; empty when it supports none.
  std::vector<std::string> (*choices)(Context& context, const ConvDesc& desc, ConvPass pass);
  /// choice: begins with this provider's name. UsageError for an unknown one, UnsupportedError for one that it cannot
  /// do.
  std::unique_ptr<ConvPlan> (*plan)(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice);
  /// The library's version at run time ("3.1.1"), for which its choices and times hold. nullptr: our own code.
  std::string (*version)() = nullptr;
};

/// The same for plan_matmul().
struct MatmulProvider {
  std::string_view name;
  DeviceKind device;
  std::vector<std::string> (*choices)(Context& context, const MatmulDesc& desc);
  std::unique_ptr<MatmulPlan> (*plan)(Context& context, const MatmulDesc& desc, const std::string& choice);
  std::string (*version)() = nullptr;
  bool relu_keeps_nan = true;  ///< false: a relu that it fuses with a product turns NaN into 0
};

/// The plan of the first choice that plan(choice) does not refuse with UnsupportedError: a library's list is only a
/// guess of its heuristics. nullptr when it refuses all. `refusal` keeps the first refusal over several calls.
template <class Plan>
[[nodiscard]] auto first_planned(const std::vector<std::string>& choices, std::exception_ptr& refusal, Plan plan)
    -> decltype(plan(choices.front())) {
  for (const std::string& choice : choices) {
    try {
      return plan(choice);
    } catch (const UnsupportedError&) {
      if (refusal == nullptr) {
        refusal = std::current_exception();
      }
    }
  }
  return nullptr;
}

/// The providers of this build, best guess first.
[[nodiscard]] std::span<const ConvProvider> conv_providers();
[[nodiscard]] std::span<const MatmulProvider> matmul_providers();

namespace reference {
extern const ConvProvider kConv;      ///< kernels/cpu/conv2d.cpp
extern const MatmulProvider kMatmul;  ///< kernels/cpu/matmul.cpp
}  // namespace reference

namespace onednn {
extern const ConvProvider kConv;      ///< kernels/onednn/conv2d.cpp
extern const MatmulProvider kMatmul;  ///< kernels/onednn/matmul.cpp
}  // namespace onednn

namespace cublaslt {
extern const MatmulProvider kMatmul;  ///< kernels/cublaslt/matmul.cpp
}  // namespace cublaslt

namespace plain_cuda {
extern const ConvProvider kConv;      ///< kernels/cuda/conv2d.cu
extern const MatmulProvider kMatmul;  ///< kernels/cuda/matmul.cu
}  // namespace plain_cuda

namespace cudnn {
extern const ConvProvider kConv;  ///< kernels/cudnn/conv2d.cpp
}  // namespace cudnn

}  // namespace lockstep::ops

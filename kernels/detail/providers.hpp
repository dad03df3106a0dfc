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

/// Inside the kernels library: who can plan convolutions and matrix products.
namespace lockstep::ops {

/// One library, or our own loops, behind plan_conv2d(). The desc was checked; the context is of the provider's device.
struct ConvProvider {
  std::string_view name;  ///< the part of a choice before the colon
  DeviceKind device;
  /// What plan() takes for this pass, best guess first; empty when it can do none of it.
  std::vector<std::string> (*choices)(Context& context, const ConvDesc& desc, ConvPass pass);
  /// choice: one that starts with this provider's name. UsageError when unknown, UnsupportedError when it cannot.
  std::unique_ptr<ConvPlan> (*plan)(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice);
  /// Of the library at run time ("3.1.1"): what its choices and their times hold for. nullptr: our own code.
  std::string (*version)() = nullptr;
};

/// The same for plan_matmul().
struct MatmulProvider {
  std::string_view name;
  DeviceKind device;
  std::vector<std::string> (*choices)(Context& context, const MatmulDesc& desc);
  std::unique_ptr<MatmulPlan> (*plan)(Context& context, const MatmulDesc& desc, const std::string& choice);
  std::string (*version)() = nullptr;
  bool relu_keeps_nan = true;  ///< false: the relu that it joins to a product makes 0 of NaN
};

/// The plan of the first choice that plan(choice) does not refuse with UnsupportedError: what a library offers is a
/// guess of its heuristics. nullptr when it refuses all; the first refusal of several calls stays in `refusal`.
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

/// Those in this build, best guess first.
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

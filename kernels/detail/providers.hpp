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

/// The libraries that can plan convolutions and matrix products. Private to the kernels library.
namespace lockstep::ops {

/// A provider of convolutions for plan_conv2d(): a library, or lockstep's own loops. Its functions get a checked desc,
/// and a context on the provider's device.
struct ConvProvider {
  std::string_view name;  ///< name of the provider: the part of a choice before the colon
  DeviceKind device;
  /// Returns the choices that plan() takes for `pass`, best guess first. Returns none if the pass is not supported.
  std::vector<std::string> (*choices)(Context& context, const ConvDesc& desc, ConvPass pass,
                                      const ConvListing& listing);
  /// Returns the plan of `choice`, which begins with this provider's name. Throws UsageError if the choice is unknown,
  /// and UnsupportedError if the choice does not support the pass.
  std::unique_ptr<ConvPlan> (*plan)(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice);
  /// Returns the version of the provider's library at run time ("3.1.1"). Stored choices and times are valid for this
  /// version only. Null if the provider is lockstep's own code.
  std::string (*version)() = nullptr;
  /// Does the work of prepare_conv2d() for this provider; nullptr if the provider needs no preparation.
  void (*prepare)(Context& context, std::span<const ConvCall> calls, Engines engines, int threads) = nullptr;
};

/// A provider of matrix products for plan_matmul(): a library, or lockstep's own loops. The members mean the same as in
/// ConvProvider.
struct MatmulProvider {
  std::string_view name;
  DeviceKind device;
  std::vector<std::string> (*choices)(Context& context, const MatmulDesc& desc);
  std::unique_ptr<MatmulPlan> (*plan)(Context& context, const MatmulDesc& desc, const std::string& choice);
  std::string (*version)() = nullptr;
  bool relu_keeps_nan = true;  ///< false if a relu that is fused with a product turns NaN into 0
};

/// Runs f(), which calls a library. If f() throws CudaError (the device failed) or OutOfMemory (the device has no
/// room), rethrows the exception. Any other Error means that the library refused the work: for such an error, calls
/// refused(error) and returns.
template <class F, class Refused>
void unless_refused(const F& f, const Refused& refused) {
  try {
    f();
  } catch (const CudaError&) {
    throw;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    refused(error);
  }
}

/// Returns the plan of the first choice that plan(choice) does not refuse (see unless_refused()). Several choices are
/// tried, because the order of a library's list is only a guess. Returns nullptr when all choices are refused.
/// If `refusal` is null, it receives the exception of the first refusal.
template <class Plan>
[[nodiscard]] auto first_planned(const std::vector<std::string>& choices, std::exception_ptr& refusal, Plan plan)
    -> decltype(plan(choices.front())) {
  decltype(plan(choices.front())) made = nullptr;
  for (const std::string& choice : choices) {
    unless_refused([&] { made = plan(choice); },
                   [&](const Error&) { refusal = refusal == nullptr ? std::current_exception() : refusal; });
    if (made != nullptr) {
      break;
    }
  }
  return made;
}

/// Return the providers of this build for convolutions and for matrix products, best guess first.
[[nodiscard]] std::span<const ConvProvider> conv_providers();
[[nodiscard]] std::span<const MatmulProvider> matmul_providers();

/// The providers of lockstep's own loops. Each variant of the host kernels (cmake/LockstepCpuVariants.cmake) has its
/// own loops. The variant is chosen at run time, which is possible for functions, but not for constants.
namespace reference {
[[nodiscard]] ConvProvider conv_provider();      ///< defined in kernels/cpu/conv2d.cpp
[[nodiscard]] MatmulProvider matmul_provider();  ///< defined in kernels/cpu/matmul.cpp
}  // namespace reference

namespace onednn {
extern const ConvProvider kConv;      ///< defined in kernels/onednn/conv2d.cpp
extern const MatmulProvider kMatmul;  ///< defined in kernels/onednn/matmul.cpp
}  // namespace onednn

namespace cublaslt {
extern const MatmulProvider kMatmul;  ///< defined in kernels/cublaslt/matmul.cpp
}  // namespace cublaslt

namespace plain_cuda {
extern const ConvProvider kConv;      ///< defined in kernels/cuda/conv2d.cu
extern const MatmulProvider kMatmul;  ///< defined in kernels/cuda/matmul.cu
}  // namespace plain_cuda

namespace cudnn {
extern const ConvProvider kConv;  ///< defined in kernels/cudnn/conv2d.cpp
}  // namespace cudnn

}  // namespace lockstep::ops

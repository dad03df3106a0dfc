#pragma once

#include <concepts>
#include <string_view>

#include <lockstep/runtime/context.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::ops {

/// How an op that yields a gradient treats what is in its output: replace it, add to it, or do not compute it.
enum class GradMode : unsigned char { overwrite, accumulate, ignore };

/// Runs f on the context's stream with the concrete context: f(CpuContext&) or f(CudaContext&). f captures by value
/// (views are values), because a worker stream runs it later. A device for which f cannot be called - there is no
/// such overload of the op - gives UnsupportedError(op, device). For the .cpp files of ops:
///
///   dispatch(ctx, "relu_forward", [=](auto& c) -> decltype(backend::relu_forward(c, x, y)) {
///     backend::relu_forward(c, x, y);
///   });
template <class F>
void dispatch(Context& context, std::string_view op, F f) {
  if (context.device().kind == DeviceKind::cpu) {
    if constexpr (std::invocable<F&, CpuContext&>) {
      auto& cpu = static_cast<CpuContext&>(context);
      cpu.stream().enqueue([&cpu, f]() mutable { f(cpu); });
      return;
    }
  }
#if LOCKSTEP_HAS_CUDA
  if (context.device().kind == DeviceKind::cuda) {
    if constexpr (std::invocable<F&, CudaContext&>) {
      f(static_cast<CudaContext&>(context));  // enqueues kernels on the CUDA stream itself
      return;
    }
  }
#endif
  throw UnsupportedError(concat(op, ": no implementation for ", context.device(), " in this build"));
}

}  // namespace lockstep::ops

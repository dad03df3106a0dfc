#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Says whether an op overwrites the gradient in its output, adds to it, or does not compute a gradient.
enum class GradMode : unsigned char { overwrite, accumulate, ignore };

/// Throws DTypeError unless ops on the view's device support its type: f32, f64 and bf16 on the host, f32, bf16 and f16
/// on a GPU.
inline void require_compute_dtype(std::string_view op, std::string_view name, const TensorView& view) {
  const DType t = view.dtype;
  if (view.device.kind == DeviceKind::cpu) {
    require<DTypeError>(t == DType::f32 || t == DType::f64 || t == DType::bf16, op, ": ", name, " is ", t,
                        ", expected f32, f64 or bf16");
  } else {
    require<DTypeError>(t == DType::f32 || t == DType::bf16 || t == DType::f16, op, ": ", name, " is ", t,
                        ", expected f32, bf16 or f16 on ", view.device);
  }
}

/// Returns the type of sums, statistics and parameters for tensors of type t: f32 for the 16-bit types, otherwise t.
[[nodiscard]] inline DType accumulation_dtype(DType t) {
  return t == DType::bf16 || t == DType::f16 ? DType::f32 : t;
}

/// Checks `workspace`: u8, contiguous, at least `bytes` bytes, aligned to `alignment`. Checks nothing if `bytes` is 0.
inline void require_workspace(std::string_view op, const TensorView& workspace, std::size_t bytes,
                              std::size_t alignment) {
  if (bytes == 0) {
    return;
  }
  require<ShapeError>(workspace.given(), op, ": workspace is not given, expected ", bytes, " bytes");
  require<DTypeError>(workspace.dtype == DType::u8, op, ": workspace is ", workspace.dtype, ", expected u8");
  require<ShapeError>(workspace.is_contiguous() && workspace.bytes() >= bytes, op, ": workspace is ", workspace.shape,
                      ", expected ", bytes, " contiguous bytes");
  require<ShapeError>(reinterpret_cast<std::uintptr_t>(workspace.data) % alignment == 0, op,
                      ": workspace is at address ", workspace.data, ", expected an address aligned to ", alignment);
}

namespace detail {
template <class Concrete, class Function>
struct OnContext;
template <class Concrete, class Result, class... Arguments>
struct OnContext<Concrete, Result(Context&, Arguments...)> {
  using Type = Result(Concrete&, Arguments...);
};
template <class Concrete, class Result, class... Arguments>
struct OnContext<Concrete, Result(const Context&, Arguments...)> {
  using Type = Result(const Concrete&, Arguments...);
};
}  // namespace detail

/// The type of an op with a concrete context (CpuContext or CudaContext) in place of Context. For example, in the
/// header of the op relu_forward, `OnContext<CpuContext, decltype(ops::relu_forward)> relu_forward;` declares the CPU
/// backend's function.
template <class Concrete, class Function>
using OnContext = typename detail::OnContext<Concrete, Function>::Type;

/// Declares the overloads of `op` for the CPU backend and the CUDA backend, with the op's arguments. Used in the
/// headers of ops, inside of namespace backend.
// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared
#define LOCKSTEP_BACKENDS(op)                  \
  OnContext<CpuContext, decltype(ops::op)> op; \
  OnContext<CudaContext, decltype(ops::op)> op
// NOLINTEND(bugprone-macro-parentheses)

namespace detail {
// Every build declares the CUDA overloads of lockstep's ops. A build without CUDA does not define these overloads; it
// compiles the ops with LOCKSTEP_HAS_CUDA=0, so that dispatch() does not call them. Programs that define their own ops
// do not set LOCKSTEP_HAS_CUDA: dispatch() calls the overloads that the program declares.
#if defined(LOCKSTEP_HAS_CUDA) && !LOCKSTEP_HAS_CUDA
constexpr bool kCudaOverloads = false;
#else
constexpr bool kCudaOverloads = true;
#endif
}  // namespace detail

/// Runs f on the context's stream with the concrete context: f(CpuContext&) or f(CudaContext&). f must capture by value
/// (views are values), because the worker of a CPU stream runs f later. Throws UnsupportedError, with op and device, if
/// the op has no overload for the device. The .cpp file of an op calls
///
///   dispatch(ctx, "relu_forward", LOCKSTEP_BACKEND(relu_forward, x, y));
template <class F>
void dispatch(Context& context, std::string_view op, F f) {
  if (context.device().kind == DeviceKind::cpu) {
    if constexpr (std::invocable<F&, CpuContext&>) {
      auto& cpu = static_cast<CpuContext&>(context);
      cpu.stream().enqueue([&cpu, f]() mutable { f(cpu); });
      return;
    }
  }
  if (context.device().kind == DeviceKind::cuda) {
    if constexpr (detail::kCudaOverloads && std::invocable<F&, CudaContext&>) {
      f(static_cast<CudaContext&>(context));  // f itself enqueues kernels on the CUDA stream
      return;
    }
  }
  throw UnsupportedError(concat(op, ": no implementation for ", context.device(),
                                " in this build, expected another device or a build with one"));
}

/// Calls f(const CpuContext&) or f(const CudaContext&) at once and returns the result of f. Used for queries that
/// enqueue no work, such as the size of a workspace. Throws UnsupportedError as dispatch() does.
template <class F>
auto ask(const Context& context, std::string_view op, F f) -> std::invoke_result_t<F&, const CpuContext&> {
  if (context.device().kind == DeviceKind::cpu) {
    return f(static_cast<const CpuContext&>(context));
  }
  if (context.device().kind == DeviceKind::cuda) {
    if constexpr (detail::kCudaOverloads && std::invocable<F&, const CudaContext&>) {
      return f(static_cast<const CudaContext&>(context));
    }
  }
  throw UnsupportedError(concat(op, ": no implementation for ", context.device(),
                                " in this build, expected another device or a build with one"));
}

/// The function f for dispatch() and ask(): f captures these arguments by value, and calls backend::op with the
/// concrete context and the arguments.
#define LOCKSTEP_BACKEND(op, ...) \
  [=](auto& concrete) -> decltype(backend::op(concrete, __VA_ARGS__)) { return backend::op(concrete, __VA_ARGS__); }

}  // namespace lockstep::ops

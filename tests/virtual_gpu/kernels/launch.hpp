#pragma once

// kernels/cuda/port.hpp includes this file instead of CUDA's headers when a kernel file is compiled for the emulation.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <lockstep/emulation/device.hpp>
#include <lockstep/emulation/emulator.hpp>

namespace lockstep::emulation {

/// Sets the schedule of the launches to come.
void set_schedule(const Schedule& schedule);

/// Returns how many kernels were put on streams so far.
[[nodiscard]] std::int64_t launches();
/// Returns how many of these kernels may begin before the kernels before them have ended
/// (Stream::launch_dependently()). In the emulation none begins early.
[[nodiscard]] std::int64_t dependent_launches();
void note_dependent(bool dependent);

/// Puts a launch on a stream of the stand-in for the CUDA runtime, which runs it in stream order. `pointers` has the
/// kernel arguments that are pointers: cudaErrorInvalidValue, and a violation, unless each is null or in device memory.
cudaError_t queue_kernel(const Launch& launch, cudaStream_t stream, std::span<const void* const> pointers,
                         std::function<void()> thread);

}  // namespace lockstep::emulation

namespace lockstep::gpu::detail {

/// Enqueues a kernel. Every CUDA thread gets its own copies of the arguments.
template <class... Parameters>
cudaError_t enqueue(void (*kernel)(Parameters...), const emulation::Launch& launch, cudaStream_t stream,
                    const std::tuple<Parameters...>& values) {
  std::array<const void*, sizeof...(Parameters)> pointers{};
  std::size_t count = 0;
  const auto note = [&](const auto& value) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>) {
      pointers[count++] = value;
    }
  };
  std::apply([&](const auto&... value) { (note(value), ...); }, values);
  return emulation::queue_kernel(launch, stream, std::span(pointers).first(count),
                                 [kernel, values] { std::apply(kernel, values); });
}

template <class... Parameters>
cudaError_t enqueue(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                    bool dependent, const std::tuple<Parameters...>& values) {
  emulation::note_dependent(dependent);
  return enqueue(kernel, {.grid = grid, .block = block, .shared_bytes = shared_bytes}, stream, values);
}

/// Enqueues a cooperative launch, for kernels/cuda/grid.hpp.
template <class... Parameters>
cudaError_t enqueue_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                             cudaStream_t stream, const std::tuple<Parameters...>& values) {
  return enqueue(kernel,
                 {.grid = grid,
                  .block = block,
                  .shared_bytes = shared_bytes,
                  .shared_limit = emulation::kMostShared,
                  .cooperative = true},
                 stream, values);
}

}  // namespace lockstep::gpu::detail

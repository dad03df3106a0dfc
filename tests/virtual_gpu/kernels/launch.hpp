#pragma once

// kernels/cuda/port.hpp includes this file in place of CUDA's headers if a kernel file is compiled for the emulation.

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

/// Sets the schedule of all later launches.
void set_schedule(const Schedule& schedule);

/// Returns the number of kernels that were enqueued so far.
[[nodiscard]] std::int64_t launches();
/// Returns the number of kernels that were enqueued with Stream::launch_dependently(). On a GPU such a kernel may begin
/// before earlier kernels have ended. In the emulation it does not.
[[nodiscard]] std::int64_t dependent_launches();
void note_dependent(bool dependent);

/// Enqueues a launch on a stream of the stand-in for the CUDA runtime. pointers: the kernel's pointer arguments. Unless
/// each is null or in device memory, returns cudaErrorInvalidValue and records a violation.
cudaError_t queue_kernel(const Launch& launch, cudaStream_t stream, std::span<const void* const> pointers,
                         std::function<void()> thread);

}  // namespace lockstep::emulation

namespace lockstep::gpu::detail {

/// Enqueues a kernel. Each CUDA thread gets a copy of the arguments.
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

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include <lockstep/kernels/cuda/port.hpp>

#if !defined(LOCKSTEP_EMULATE_CUDA)
#include <cooperative_groups.h>
#endif

/// Cooperative launches: all blocks run at once, so that blocks can wait for each other.
namespace lockstep::gpu {

namespace detail {

#if defined(LOCKSTEP_EMULATE_CUDA)

/// Returns the number of blocks that run at once on the emulated GPU. Of a block's shared memory 24 KB are reserved for
/// static variables; the emulator reports a kernel whose static variables need more.
template <class... Parameters>
std::int64_t resident_blocks(void (*)(Parameters...), int, std::size_t dynamic_bytes, Device) {
  return dynamic_bytes <= emulation::kMostShared - 24 * 1024 ? kMostBlocks : 0;
}

#else

template <class... Parameters>
cudaError_t enqueue_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                             cudaStream_t stream, std::tuple<Parameters...>& values) {
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes,
                                           stream);
      },
      values);
}

template <class... Parameters>
std::int64_t resident_blocks(void (*kernel)(Parameters...), int block, std::size_t dynamic_bytes, Device device) {
  const cuda::DeviceGuard guard(device);
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes{};
  LOCKSTEP_CUDA_CHECK(device, cudaFuncGetAttributes(&attributes, function));
  int most = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index));
  const int most_dynamic = most - static_cast<int>(attributes.sharedSizeBytes);
  if (most_dynamic < 0 || dynamic_bytes > static_cast<std::size_t>(most_dynamic)) {
    return 0;
  }
  // This limit of dynamic shared memory is always set to the largest size that any launch may have. Reason: a captured
  // launch runs later, and must not find a smaller limit that a call of this function has set in the meantime.
  LOCKSTEP_CUDA_CHECK(device,
                      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most_dynamic));
  // Shared memory gets the largest part of the first-level cache. With a smaller part, a launch that needs more would
  // fail.
  LOCKSTEP_CUDA_CHECK(device, cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                   cudaSharedmemCarveoutMaxShared));
  int each = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, function, block, dynamic_bytes));
  int multiprocessors = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index));
  return std::int64_t{each} * multiprocessors;
}

#endif

}  // namespace detail

/// Returns how many blocks of `kernel` run at once on a device that does nothing else. A block has `block` threads and
/// `dynamic_bytes` bytes of dynamic shared memory. Returns 0 if not even one block fits. The function makes several
/// slow calls of the CUDA runtime. Launchers should call the overload with a context, which caches the result.
template <class... Parameters>
[[nodiscard]] std::int64_t resident_blocks(void (*kernel)(Parameters...), int block, std::size_t dynamic_bytes,
                                           Device device) {
  return detail::resident_blocks(kernel, block, dynamic_bytes, device);
}

/// Returns resident_blocks() of the device of `context`. The result is computed once per kernel and `dynamic_bytes`,
/// then cached.
template <class... Parameters>
[[nodiscard]] std::int64_t resident_blocks(void (*kernel)(Parameters...), int block, std::size_t dynamic_bytes,
                                           CudaContext& context) {
  struct Answers {
    std::map<std::pair<const void*, std::size_t>, std::int64_t> blocks;
  };
  auto& answers = context.library<Answers>([] { return std::make_shared<Answers>(); }).blocks;
  const std::pair key(reinterpret_cast<const void*>(kernel), dynamic_bytes);
  const auto found = answers.find(key);
  if (found != answers.end()) {
    return found->second;
  }
  return answers[key] = resident_blocks(kernel, block, dynamic_bytes, context.device());
}

/// Launches a kernel whose blocks call grid_barrier(), with at most resident_blocks() blocks. The launch begins when
/// the device has room for all of its blocks at once. So the launch waits for kernels of other streams that occupy the
/// device, such as a collective on more than a few multiprocessors. On a device only one stream may have such launches
/// at a time. Otherwise the blocks of two launches could start mixed, and each launch could hold resources that the
/// other launch waits for. In a plan, PlanBuilder::call_together() keeps this rule.
template <class... Parameters, class... Arguments>
void launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                     const Stream& stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "launch: one argument for each parameter of the kernel");
  const Device device = stream.device();
  const cuda::DeviceGuard guard(device);
  std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  LOCKSTEP_CUDA_CHECK(device,
                      detail::enqueue_together(kernel, grid, block, shared_bytes, stream.cuda_handle(), values));
}

/// Waits until all threads of the launch have called grid_barrier(). All threads of all blocks must call it. Then each
/// thread sees all writes that any thread made before it called grid_barrier().
#if defined(LOCKSTEP_EMULATE_CUDA)
using emulation::grid_barrier;
#else
__device__ inline void grid_barrier() {
  cooperative_groups::this_grid().sync();
}
#endif

}  // namespace lockstep::gpu

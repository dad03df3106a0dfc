#pragma once

// The only CUDA header that kernel files include. nvcc compiles the .cu files. With LOCKSTEP_EMULATE_CUDA the host
// compiler compiles the same files, against an emulation of blocks, warps and shared memory. Kernel files must
// therefore follow these rules:
//   - launch through gpu::launch(), never <<<>>>;
//   - begin every kernel with gpu::wait_for_earlier(), before it touches memory (scripts/check-kernels.sh checks this);
//   - name shared memory through the two macros below, at the top of a function;
//   - give every warp collective an explicit mask and use gpu::kWarp for the warp size;
//   - do not return before a barrier: put the condition around the work, not around the barrier.

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>

#if defined(LOCKSTEP_EMULATE_CUDA)

// The headers in tests/virtual_gpu/kernels/ emulate CUDA's device functions. They also define the macros and functions
// that the #else branch below defines for CUDA.
#include <lockstep/emulation/launch.hpp>

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/// Declares a shared variable of one block: LOCKSTEP_SHARED(float, tile, [32][33]). A type with a comma needs an alias.
#define LOCKSTEP_SHARED(type, name, extents) __shared__ type name extents

/// Declares a pointer to the launch's dynamic shared memory (aligned to 16 bytes), for example
/// LOCKSTEP_DYNAMIC_SHARED(float, partial);
#define LOCKSTEP_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char lockstep_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(lockstep_dynamic_shared)

namespace lockstep::gpu::detail {

/// Launches kernel(values...) on `stream`. Stream::launch_dependently() describes what `dependent` means.
template <class... Parameters>
cudaError_t enqueue(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                    bool dependent, std::tuple<Parameters...>& values) {
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        const auto* const function = reinterpret_cast<const void*>(kernel);
        if (!dependent) {
          return cudaLaunchKernel(function, grid, block, pointers, shared_bytes, stream);
        }
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = shared_bytes;
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = 1;
        return cudaLaunchKernelExC(&config, function, pointers);
      },
      values);
}

}  // namespace lockstep::gpu::detail

#endif

#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

namespace lockstep::gpu {

/// Enqueues kernel(arguments...) on `stream`, whose device need not be the thread's current device. The arguments are
/// converted to the kernel's parameter types. Throws CudaError when CUDA refuses the launch (for its grid, block or
/// shared memory). Allocates nothing and does not synchronise.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, const Stream& stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "launch: one argument for each parameter of the kernel");
  const Device device = stream.device();
  const cuda::DeviceGuard guard(device);
  std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  LOCKSTEP_CUDA_CHECK(device, detail::enqueue(kernel, grid, block, shared_bytes, stream.cuda_handle(),
                                              stream.launches_dependently(), values));
}

inline constexpr int kWarp = 32;

/// Waits until the previous kernel of the stream has ended and its writes are visible. Does nothing unless kernels of
/// the stream may overlap (Stream::launch_dependently()). Since every kernel calls this function, all earlier kernels
/// of the stream have ended after the call.
__device__ inline void wait_for_earlier() {
#if !defined(LOCKSTEP_EMULATE_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

#if defined(LOCKSTEP_EMULATE_CUDA)
inline constexpr std::int64_t kMostBlocks = 6;  // small, so that the loops of small tests run several times
#else
inline constexpr std::int64_t kMostBlocks = 132 * 8;  // 132 multiprocessors (H100, H200), 8 blocks of 256 threads each
#endif

/// Returns the number of blocks of `block` threads for a grid-stride loop over `items` items: enough to fill a large
/// GPU, and no more. The results of a kernel must not depend on this number.
[[nodiscard]] inline unsigned blocks_for(std::int64_t items, int block) {
  const std::int64_t blocks = (items + block - 1) / block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// grid_thread() returns the number of this thread in its grid, grid_threads() the number of threads of the grid.
__device__ inline std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace lockstep::gpu

namespace lockstep::ops::backend {
using std::int64_t;  // so that the files of ops can write int64_t without std::
}  // namespace lockstep::ops::backend

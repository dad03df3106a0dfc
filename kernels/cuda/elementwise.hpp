#pragma once

#include <cstdint>

#include <lockstep/kernels/cuda/element.hpp>

namespace lockstep::gpu {

inline constexpr int kElementwiseBlock = 256;

/// Computes out[i] = f(in[i]...) in float for i in [0, count). out, in: (count). In a grid-stride loop a thread takes
/// 16 bytes (a piece) of each tensor, so that a warp accesses 512 neighbouring bytes at a time. The elements after the
/// first `vectors` pieces are taken one by one. A thread reads a piece of all operands before it writes the piece: out
/// may be one of in. No shared memory. Memory bandwidth bounds the kernel: each tensor is read or written once.
template <class F, class T, class... In>
__global__ void elementwise_kernel(F f, std::int64_t count, std::int64_t vectors, T* out, const In*... in) {
  gpu::wait_for_earlier();
  constexpr int kElements = kPerVector<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t v = thread; v < vectors; v += threads) {
    const auto apply = [&](const Vector<In>&... operands) {
      Vector<T> result;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        result.at[j] = from_float<T>(f(to_float(operands.at[j])...));
      }
      return result;
    };
    store_vector(out + v * kElements, apply(load_vector(in + v * kElements)...));
  }
  for (std::int64_t i = vectors * kElements + thread; i < count; i += threads) {
    out[i] = from_float<T>(f(to_float(in[i])...));
  }
}

/// Enqueues out = f(in...) on contiguous memory of `count` elements, with blocks of 256 threads. If an address is not a
/// multiple of 16 bytes, all elements are taken one at a time.
template <class F, class T, class... In>
void elementwise(CudaContext& context, F f, std::int64_t count, T* out, const In*... in) {
  static_assert((std::is_same_v<T, In> && ...), "elementwise: one element type");
  if (count == 0) {
    return;
  }
  const std::int64_t vectors = aligned_to_vectors(out, in...) ? count / kPerVector<T> : 0;
  const std::int64_t rest = count - vectors * kPerVector<T>;
  const unsigned blocks = blocks_for(vectors > rest ? vectors : rest, kElementwiseBlock);
  launch(elementwise_kernel<F, T, In...>, dim3(blocks), dim3(kElementwiseBlock), 0, context.stream(), f, count, vectors,
         out, in...);
}

}  // namespace lockstep::gpu

// Max pool of x (N, H, W, C) to y and index (N, P, Q, C), and its gradient.
// Blocks of 256 threads in a grid-stride loop. A thread takes a piece: 16 bytes of channels of one output pixel. It
// reads all elements of the pixel's window. Neighbouring threads access neighbouring channels. Elements that several
// windows share are read again from the caches. In backward a thread sums over the windows that cover an element of dx,
// instead of adding to dx from each window. So no two threads write one element, and the order of the sum is fixed.
// Registers only, no shared memory.
// Memory bandwidth bounds the kernels. Forward reads x once and writes y and a 4-byte index: 8 bytes per element of y
// in f32, 6 in 16 bits. Backward reads as many bytes of dy and index, and writes dx once.

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/pool_window.hpp>
#include <lockstep/kernels/max_pool2d.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

/// Computes y, and in index the position of the maximum in each window. x: (N, H, W, C), y: (N, P, Q, C), index: (N, P,
/// Q, C) or null. `pieces` is the number of pieces of y; a piece is kCount channels of one pixel.
template <class T, int kCount>
__global__ void max_forward_kernel(gpu::PoolGeometry g, int64_t pieces, const T* x, T* y, std::int32_t* index) {
  gpu::wait_for_earlier();
  const int64_t width = g.columns.extent;
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const gpu::PoolPlace place = gpu::window_of_piece<kCount>(g, i);
    const T* const image = x + place.image;
    const int64_t start = place.rows.first * width + place.columns.first;
    gpu::Pack<T, kCount> best = gpu::load<kCount>(image + start * g.channels);
    gpu::Pack<std::int32_t, kCount> winner;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      winner.at[j] = static_cast<std::int32_t>(start);
    }
    for (int64_t h = place.rows.first; h < place.rows.last; ++h) {
      for (int64_t w = place.columns.first; w < place.columns.last; ++w) {
        const int64_t here = h * width + w;
        const auto values = gpu::load<kCount>(image + here * g.channels);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const float value = gpu::to_float(values.at[j]);
          const float before = gpu::to_float(best.at[j]);
          const bool wins = !(value <= before) && before == before;  // no value replaces a NaN
          best.at[j] = wins ? values.at[j] : best.at[j];
          winner.at[j] = wins ? static_cast<std::int32_t>(here) : winner.at[j];
        }
      }
    }
    gpu::store(y + i * kCount, best);
    if (index != nullptr) {
      gpu::store(index + i * kCount, winner);
    }
  }
}

/// Computes dx. For each element of dx one thread sums over the windows that cover the element, in row-major order: no
/// two threads write the same element, and the order of the sums is fixed. dy, index: (N, P, Q, C), dx: (N, H, W, C).
/// `pieces` is the number of pieces of dx.
template <class T, int kCount>
__global__ void max_backward_kernel(gpu::PoolGeometry g, int64_t pieces, const T* dy, const std::int32_t* index,
                                    T* dx) {
  gpu::wait_for_earlier();
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const gpu::PoolPlace place = gpu::windows_over_piece<kCount>(g, i);
    const auto here = static_cast<std::int32_t>(place.row * g.columns.extent + place.column);
    float sum[kCount] = {};
    for (int64_t p = place.rows.first; p < place.rows.last; ++p) {
      for (int64_t q = place.columns.first; q < place.columns.last; ++q) {
        const int64_t from = place.image + (p * g.columns.outputs + q) * g.channels;
        const auto winner = gpu::load<kCount>(index + from);
        const auto gradient = gpu::load<kCount>(dy + from);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sum[j] += winner.at[j] == here ? gpu::to_float(gradient.at[j]) : 0.0F;
        }
      }
    }
    gpu::store(dx + i * kCount, gpu::rounded<T>(sum));
  }
}

}  // namespace

void max_pool2d_forward(CudaContext& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "max_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const gpu::PoolGeometry g = gpu::pool_geometry(desc, x.shape, y.shape);
    auto* const winners = gpu::data<std::int32_t>(index);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(x), gpu::data<T>(y), winners);
    gpu::visit_pieces<T>(aligned, g.channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = y.numel() / kCount;
      gpu::launch(max_forward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), g, pieces, gpu::data<T>(x), gpu::data<T>(y), winners);
    });
  });
}

void max_pool2d_backward(CudaContext& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx) {
  if (dx.numel() == 0) {
    return;
  }
  gpu::visit_element(dx.dtype, "max_pool2d_backward", [&]<class T>(std::type_identity<T>) {
    const gpu::PoolGeometry g = gpu::pool_geometry(desc, dx.shape, dy.shape);
    const auto* const winners = gpu::data<const std::int32_t>(index);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(dx), gpu::data<T>(dy), winners);
    gpu::visit_pieces<T>(aligned, g.channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = dx.numel() / kCount;
      gpu::launch(max_backward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), g, pieces, gpu::data<T>(dy), winners, gpu::data<T>(dx));
    });
  });
}

}  // namespace lockstep::ops::backend

// Average pools of x (N, H, W, C), and their gradients. Pools over windows give y (N, P, Q, C); pools over whole images
// give y (N, C). A piece is 16 bytes of channels of one pixel.
//
// Windows: blocks of 256 threads. A thread takes a piece of one output pixel, and sums all elements of the pixel's
// window. Neighbouring threads read neighbouring channels. Elements that several windows share are read again from the
// caches.
//
// Whole images: a block of 32 x 8 threads takes 32 pieces of channels of one image. The 8 threads of a piece share the
// pixels of the image, and join their sums in 4 or 8 KB of shared memory. If one thread summed all pixels of a piece,
// there would be too few threads for a GPU.
//
// Memory bandwidth bounds the kernels: x (or dy) is read once and y (or dx) written once, each 4 bytes per element in
// f32 and 2 in 16 bits. The sums take one addition per element that is read.

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/pool_window.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

/// Returns the divisor of the mean over a window with these rows and columns inside the image. `window` is the number
/// of elements of a whole window if padding counts, otherwise 0.
__device__ float divisor(int64_t window, const gpu::PoolRange& rows, const gpu::PoolRange& columns) {
  const int64_t inside = (rows.last - rows.first) * (columns.last - columns.first);
  return static_cast<float>(window > 0 ? window : inside);
}

[[nodiscard]] int64_t window_size(const PoolDesc& desc, AverageOver over) {
  return over == AverageOver::window ? desc.kernel[0] * desc.kernel[1] : 0;
}

/// Computes y (N, P, Q, C) from x (N, H, W, C). `pieces` is the number of pieces of y; `window` is the argument of
/// divisor().
template <class T, int kCount>
__global__ void average_forward_kernel(gpu::PoolGeometry g, int64_t window, int64_t pieces, const T* x, T* y) {
  gpu::wait_for_earlier();
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const gpu::PoolPlace place = gpu::window_of_piece<kCount>(g, i);
    float sum[kCount] = {};
    for (int64_t h = place.rows.first; h < place.rows.last; ++h) {
      for (int64_t w = place.columns.first; w < place.columns.last; ++w) {
        const auto values = gpu::load<kCount>(x + place.image + (h * g.columns.extent + w) * g.channels);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sum[j] += gpu::to_float(values.at[j]);
        }
      }
    }
    const float share = 1.0F / divisor(window, place.rows, place.columns);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sum[j] *= share;
    }
    gpu::store(y + i * kCount, gpu::rounded<T>(sum));
  }
}

/// Computes dx (N, H, W, C) from dy (N, P, Q, C). For each element of dx one thread sums over the windows that cover
/// the element, in row-major order: no two threads write the same element, and the order of the sums is fixed. `pieces`
/// is the number of pieces of dx; `window` is the argument of divisor().
template <class T, int kCount>
__global__ void average_backward_kernel(gpu::PoolGeometry g, int64_t window, int64_t pieces, const T* dy, T* dx) {
  gpu::wait_for_earlier();
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const gpu::PoolPlace place = gpu::windows_over_piece<kCount>(g, i);
    float sum[kCount] = {};
    for (int64_t p = place.rows.first; p < place.rows.last; ++p) {
      for (int64_t q = place.columns.first; q < place.columns.last; ++q) {
        const float share = 1.0F / divisor(window, gpu::covered(g.rows, p), gpu::covered(g.columns, q));
        const auto gradient = gpu::load<kCount>(dy + place.image + (p * g.columns.outputs + q) * g.channels);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sum[j] = fmaf(gpu::to_float(gradient.at[j]), share, sum[j]);
        }
      }
    }
    gpu::store(dx + i * kCount, gpu::rounded<T>(sum));
  }
}

constexpr int kLanes = 8;  // number of threads that share the pixels of one piece

/// Computes y (N, C), the mean over all pixels of x (N, pixels, C). A block takes 32 pieces of channels of one image,
/// and 8 threads (lanes) share a piece. Lane k sums pixels k, k + 8, ... of the image; then the sums of the 8 lanes are
/// joined in the order of the lanes.
template <class T, int kCount>
__global__ void global_forward_kernel(int64_t images, int64_t pixels, int64_t channels, const T* x, T* y) {
  gpu::wait_for_earlier();
  const int64_t per_pixel = channels / kCount;
  const int64_t tiles = (per_pixel + gpu::kWarp - 1) / gpu::kWarp;
  for (int64_t task = blockIdx.x; task < images * tiles; task += gridDim.x) {
    const int64_t n = task / tiles;
    const int64_t piece = task % tiles * gpu::kWarp + threadIdx.x;
    float sum[kCount] = {};
    if (piece < per_pixel) {
      const T* const image = x + n * pixels * channels + piece * kCount;
      for (int64_t i = threadIdx.y; i < pixels; i += kLanes) {
        const auto values = gpu::load<kCount>(image + i * channels);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sum[j] += gpu::to_float(values.at[j]);
        }
      }
    }
    gpu::sum_lanes<kLanes>(sum);
    if (threadIdx.y == 0 && piece < per_pixel) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sum[j] /= static_cast<float>(pixels);
      }
      gpu::store(y + n * channels + piece * kCount, gpu::rounded<T>(sum));
    }
  }
}

/// Computes dx (N, pixels, C) from dy (N, C). A thread divides a piece of dy by the number of pixels, and writes it to
/// one pixel of dx. `pieces` is the number of pieces of dx.
template <class T, int kCount>
__global__ void global_backward_kernel(int64_t pieces, int64_t pixels, int64_t channels, const T* dy, T* dx) {
  gpu::wait_for_earlier();
  const int64_t per_pixel = channels / kCount;
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const int64_t n = i / per_pixel / pixels;
    auto piece = gpu::load<kCount>(dy + n * channels + i % per_pixel * kCount);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      piece.at[j] = gpu::from_float<T>(gpu::to_float(piece.at[j]) / static_cast<float>(pixels));
    }
    gpu::store(dx + i * kCount, piece);
  }
}

}  // namespace

void average_pool2d_forward(CudaContext& context, const PoolDesc& desc, AverageOver over, const TensorView& x,
                            const TensorView& y) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "average_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const gpu::PoolGeometry g = gpu::pool_geometry(desc, x.shape, y.shape);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(x), gpu::data<T>(y));
    gpu::visit_pieces<T>(aligned, g.channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = y.numel() / kCount;
      gpu::launch(average_forward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), g, window_size(desc, over), pieces, gpu::data<T>(x), gpu::data<T>(y));
    });
  });
}

void average_pool2d_backward(CudaContext& context, const PoolDesc& desc, AverageOver over, const TensorView& dy,
                             const TensorView& dx) {
  if (dx.numel() == 0) {
    return;
  }
  gpu::visit_element(dx.dtype, "average_pool2d_backward", [&]<class T>(std::type_identity<T>) {
    const gpu::PoolGeometry g = gpu::pool_geometry(desc, dx.shape, dy.shape);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(dx), gpu::data<T>(dy));
    gpu::visit_pieces<T>(aligned, g.channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = dx.numel() / kCount;
      gpu::launch(average_backward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), g, window_size(desc, over), pieces, gpu::data<T>(dy), gpu::data<T>(dx));
    });
  });
}

void global_average_pool_forward(CudaContext& context, const TensorView& x, const TensorView& y) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "global_average_pool_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t images = x.shape[0];
    const int64_t channels = x.shape[3];
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(x), gpu::data<T>(y));
    gpu::visit_pieces<T>(aligned, channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t tiles = (channels / kCount + gpu::kWarp - 1) / gpu::kWarp;
      gpu::launch(global_forward_kernel<T, kCount>, dim3(gpu::blocks_for(images * tiles, 1)), dim3(gpu::kWarp, kLanes),
                  0, context.stream(), images, x.shape[1] * x.shape[2], channels, gpu::data<T>(x), gpu::data<T>(y));
    });
  });
}

void global_average_pool_backward(CudaContext& context, const TensorView& dy, const TensorView& dx) {
  if (dx.numel() == 0) {
    return;
  }
  gpu::visit_element(dx.dtype, "global_average_pool_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = dx.shape[3];
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(dx), gpu::data<T>(dy));
    gpu::visit_pieces<T>(aligned, channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = dx.numel() / kCount;
      gpu::launch(global_backward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), pieces, dx.shape[1] * dx.shape[2], channels, gpu::data<T>(dy), gpu::data<T>(dx));
    });
  });
}

}  // namespace lockstep::ops::backend

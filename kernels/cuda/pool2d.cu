#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/pool2d.hpp>

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

constexpr int kBlock = 256;

// Every thread takes a piece of kCount channels of one pixel of its output, neighbours neighbouring pieces. What
// windows share is read again from the caches: memory sees x (or dy and index) once, and the output once.

struct Axis {
  int64_t extent, outputs;  // of x and of y
  int64_t kernel, stride, before;
};

struct Geometry {
  Axis rows, columns;
  int64_t channels;
};

Geometry geometry(const PoolDesc& desc, const Shape& x, const Shape& y) {
  const auto axis = [&](int i) {
    const auto u = static_cast<std::size_t>(i);
    return Axis{x[1 + i], y[1 + i], desc.kernel[u], desc.stride[u], desc.pad_before[u]};
  };
  return {axis(0), axis(1), x[3]};
}

struct Range {
  int64_t first, last;
};

/// Inputs that window `out` covers.
__device__ Range covered(const Axis& axis, int64_t out) {
  const int64_t begin = out * axis.stride - axis.before;
  const int64_t end = begin + axis.kernel;
  return {begin > 0 ? begin : 0, end < axis.extent ? end : axis.extent};
}

/// Windows that cover input `in`: those that start in [to - kernel + 1, to].
__device__ Range covering(const Axis& axis, int64_t in) {
  const int64_t to = in + axis.before;
  const int64_t from = to - axis.kernel + 1;
  const int64_t end = to / axis.stride + 1;
  return {from > 0 ? (from + axis.stride - 1) / axis.stride : 0, end < axis.outputs ? end : axis.outputs};
}

/// x: (N, H, W, C), y: (N, P, Q, C), index: (N, P, Q, C) or null. pieces: of y.
template <class T, int kCount>
__global__ void max_forward_kernel(Geometry g, int64_t pieces, const T* x, T* y, std::int32_t* index) {
  const int64_t per_pixel = g.channels / kCount;
  const int64_t width = g.columns.extent;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < pieces; i += threads) {
    const int64_t pixel = i / per_pixel;
    const int64_t row = pixel / g.columns.outputs;
    const Range columns = covered(g.columns, pixel % g.columns.outputs);
    const Range rows = covered(g.rows, row % g.rows.outputs);
    const T* const image = x + row / g.rows.outputs * g.rows.extent * width * g.channels + i % per_pixel * kCount;
    const int64_t start = rows.first * width + columns.first;
    gpu::Pack<T, kCount> best = gpu::load<kCount>(image + start * g.channels);
    gpu::Pack<std::int32_t, kCount> winner;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      winner.at[j] = static_cast<std::int32_t>(start);
    }
    for (int64_t h = rows.first; h < rows.last; ++h) {
      for (int64_t w = columns.first; w < columns.last; ++w) {
        const int64_t here = h * width + w;
        const auto values = gpu::load<kCount>(image + here * g.channels);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const float value = gpu::to_float(values.at[j]);
          const float before = gpu::to_float(best.at[j]);
          const bool wins = !(value <= before) && before == before;  // a NaN wins once and then stays
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

/// Every element of dx gathers from the windows that cover it, in row-major order: no two threads write the same place,
/// and the sums have one order. dy, index: (N, P, Q, C), dx: (N, H, W, C). pieces: of dx.
template <class T, int kCount>
__global__ void max_backward_kernel(Geometry g, int64_t pieces, const T* dy, const std::int32_t* index, T* dx) {
  const int64_t per_pixel = g.channels / kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < pieces; i += threads) {
    const int64_t pixel = i / per_pixel;
    const int64_t row = pixel / g.columns.extent;
    const int64_t w = pixel % g.columns.extent;
    const int64_t h = row % g.rows.extent;
    const int64_t image = row / g.rows.extent * g.rows.outputs;  // first output row of the image
    const Range rows = covering(g.rows, h);
    const Range columns = covering(g.columns, w);
    const auto here = static_cast<std::int32_t>(h * g.columns.extent + w);
    float sum[kCount] = {};
    for (int64_t p = rows.first; p < rows.last; ++p) {
      for (int64_t q = columns.first; q < columns.last; ++q) {
        const int64_t from = ((image + p) * g.columns.outputs + q) * g.channels + i % per_pixel * kCount;
        const auto winner = gpu::load<kCount>(index + from);
        const auto gradient = gpu::load<kCount>(dy + from);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sum[j] += winner.at[j] == here ? gpu::to_float(gradient.at[j]) : 0.0F;
        }
      }
    }
    gpu::Pack<T, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      result.at[j] = gpu::from_float<T>(sum[j]);
    }
    gpu::store(dx + i * kCount, result);
  }
}

constexpr int kLanes = 8;  // threads that share the pixels of one piece

/// A block takes 32 pieces of one image. Lane k sums pixels k, k + 8, ...; the 8 sums are joined in order.
/// x: (N, pixels, C), y: (N, C).
template <class T, int kCount>
__global__ void average_forward_kernel(int64_t images, int64_t pixels, int64_t channels, const T* x, T* y) {
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
      gpu::Pack<T, kCount> result;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        result.at[j] = gpu::from_float<T>(sum[j] / static_cast<float>(pixels));
      }
      gpu::store(y + n * channels + piece * kCount, result);
    }
  }
}

/// dy: (N, C), dx: (N, pixels, C). pieces: of dx.
template <class T, int kCount>
__global__ void average_backward_kernel(int64_t pieces, int64_t pixels, int64_t channels, const T* dy, T* dx) {
  const int64_t per_pixel = channels / kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < pieces; i += threads) {
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

void max_pool2d_forward(CudaContext& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "max_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const Geometry g = geometry(desc, x.shape, y.shape);
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
    const Geometry g = geometry(desc, dx.shape, dy.shape);
    const auto* const winners = gpu::data<const std::int32_t>(index);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(dx), gpu::data<T>(dy), winners);
    gpu::visit_pieces<T>(aligned, g.channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = dx.numel() / kCount;
      gpu::launch(max_backward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), g, pieces, gpu::data<T>(dy), winners, gpu::data<T>(dx));
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
      gpu::launch(average_forward_kernel<T, kCount>, dim3(gpu::blocks_for(images * tiles, 1)), dim3(gpu::kWarp, kLanes),
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
      gpu::launch(average_backward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0,
                  context.stream(), pieces, dx.shape[1] * dx.shape[2], channels, gpu::data<T>(dy), gpu::data<T>(dx));
    });
  });
}

}  // namespace lockstep::ops::backend

// Copies every stride-th pixel of x (N, H, W, C) to y (N, P, Q, K), with zeros in the channels that x lacks; and
// computes the gradient.
// Blocks of 256 threads in a grid-stride loop. Each thread copies a piece of 16 bytes of channels (or one channel) of
// one pixel; neighbouring threads copy neighbouring pieces, so that both tensors are accessed in whole sectors. There
// is no shared memory, because no element is used twice.
// Bound by memory bandwidth: the result is written once, and the C channels of the subsampled pixels are read once, 4
// bytes per element in f32 and 2 in 16 bits. Accumulation touches only the subsampled pixels of dx: for each of their
// elements it reads dy, reads dx and writes dx.

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/subsample_pad.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

struct Geometry {
  int64_t height, width, channels;              // extents of x and dx: (N, H, W, C)
  int64_t out_height, out_width, out_channels;  // extents of y and dy: (N, P, Q, K)
  int64_t first;                                // channel of y that holds channel 0 of x
  int64_t stride;
};

Geometry geometry(const Shape& x, const Shape& y, int64_t stride) {
  return {x[1], x[2], x[3], y[1], y[2], y[3], (y[3] - x[3]) / 2, stride};
}

/// Calls f with the number of channels of a piece, chosen so that x has either all channels of a piece or none.
template <class T, class F>
void visit_channels(const TensorView& large, const TensorView& small, const Geometry& g, F&& f) {
  const bool whole = g.first % gpu::kPerVector<T> == 0 && g.out_channels % gpu::kPerVector<T> == 0;
  gpu::visit_pieces<T>(whole && gpu::aligned_to_vectors(gpu::data<T>(large), gpu::data<T>(small)), g.channels, f);
}

/// Computes y from x. `pieces` is the number of pieces (of kCount channels) of y.
template <class T, int kCount>
__global__ void forward_kernel(Geometry g, int64_t pieces, const T* x, T* y) {  // x: (N, H, W, C), y: (N, P, Q, K)
  gpu::wait_for_earlier();
  const int64_t per_pixel = g.out_channels / kCount;
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const int64_t pixel = i / per_pixel;
    const int64_t c = i % per_pixel * kCount - g.first;  // channel of x; outside of [0, channels) if x lacks it
    const int64_t row = pixel / g.out_width;
    const int64_t w = pixel % g.out_width * g.stride;
    const int64_t h = row % g.out_height * g.stride;
    const int64_t n = row / g.out_height;
    gpu::Pack<T, kCount> piece{};
    if (c >= 0 && c < g.channels) {
      piece = gpu::load<kCount>(x + ((n * g.height + h) * g.width + w) * g.channels + c);
    }
    gpu::store(y + i * kCount, piece);
  }
}

/// Writes all of dx. `pieces` is the number of pieces (of kCount channels) of dx.
template <class T, int kCount>
__global__ void backward_kernel(Geometry g, int64_t pieces, const T* dy, T* dx) {  // dy: (N, P, Q, K), dx: (N, H, W, C)
  gpu::wait_for_earlier();
  const int64_t per_pixel = g.channels / kCount;
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const int64_t pixel = i / per_pixel;
    const int64_t c = i % per_pixel * kCount;
    const int64_t row = pixel / g.width;
    const int64_t w = pixel % g.width;
    const int64_t h = row % g.height;
    const int64_t n = row / g.height;
    gpu::Pack<T, kCount> piece{};
    if (h % g.stride == 0 && w % g.stride == 0) {
      const int64_t from = (n * g.out_height + h / g.stride) * g.out_width + w / g.stride;
      piece = gpu::load<kCount>(dy + from * g.out_channels + g.first + c);
    }
    gpu::store(dx + i * kCount, piece);
  }
}

/// Adds dy to the subsampled pixels of dx, and touches no other pixels. dy: (N, P, Q, K), dx: (N, H, W, C). `pieces` is
/// the number of pieces (kCount channels of one pixel) to add: N * P * Q * C / kCount.
template <class T, int kCount>
__global__ void accumulate_kernel(Geometry g, int64_t pieces, const T* dy, T* dx) {
  gpu::wait_for_earlier();
  const int64_t per_pixel = g.channels / kCount;
  for (int64_t i = gpu::grid_thread(); i < pieces; i += gpu::grid_threads()) {
    const int64_t pixel = i / per_pixel;
    const int64_t c = i % per_pixel * kCount;
    const int64_t row = pixel / g.out_width;
    const int64_t w = pixel % g.out_width * g.stride;
    const int64_t h = row % g.out_height * g.stride;
    const int64_t n = row / g.out_height;
    T* const to = dx + ((n * g.height + h) * g.width + w) * g.channels + c;
    const auto more = gpu::load<kCount>(dy + pixel * g.out_channels + g.first + c);
    auto piece = gpu::load<kCount>(to);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      piece.at[j] = gpu::from_float<T>(gpu::to_float(piece.at[j]) + gpu::to_float(more.at[j]));
    }
    gpu::store(to, piece);
  }
}

}  // namespace

void subsample_pad_forward(CudaContext& context, int64_t stride, const TensorView& x, const TensorView& y) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "subsample_pad_forward", [&]<class T>(std::type_identity<T>) {
    const Geometry g = geometry(x.shape, y.shape, stride);
    visit_channels<T>(x, y, g, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = y.numel() / kCount;
      gpu::launch(forward_kernel<T, kCount>, dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0, context.stream(),
                  g, pieces, gpu::data<T>(x), gpu::data<T>(y));
    });
  });
}

void subsample_pad_backward(CudaContext& context, int64_t stride, const TensorView& dy, GradMode mode,
                            const TensorView& dx) {
  const bool add = mode == GradMode::accumulate;
  const int64_t elements = add ? dy.shape[0] * dy.shape[1] * dy.shape[2] * dx.shape[3] : dx.numel();
  if (elements == 0) {
    return;
  }
  gpu::visit_element(dx.dtype, "subsample_pad_backward", [&]<class T>(std::type_identity<T>) {
    const Geometry g = geometry(dx.shape, dy.shape, stride);
    visit_channels<T>(dx, dy, g, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = elements / kCount;
      gpu::launch(add ? accumulate_kernel<T, kCount> : backward_kernel<T, kCount>,
                  dim3(gpu::blocks_for(pieces, kBlock)), dim3(kBlock), 0, context.stream(), g, pieces, gpu::data<T>(dy),
                  gpu::data<T>(dx));
    });
  });
}

}  // namespace lockstep::ops::backend

#include <lockstep/kernels/subsample_pad.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kGrain = 16384;  // number of elements that justify another thread

struct Geometry {
  int64_t height, width, channels;              // extents of x and dx: (N, H, W, C)
  int64_t out_height, out_width, out_channels;  // extents of y and dy: (N, P, Q, K)
  int64_t first;                                // channel of y that holds channel 0 of x
};

Geometry geometry(const Shape& x, const Shape& y) {
  return {x[1], x[2], x[3], y[1], y[2], y[3], (y[3] - x[3]) / 2};
}

int64_t rows_per_thread(int64_t row) {
  return std::max(int64_t{1}, kGrain / std::max(int64_t{1}, row));
}

}  // namespace

void subsample_pad_forward(CpuContext& context, int64_t stride, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "subsample_pad_forward", [&]<class T>(std::type_identity<T>) {
    const Geometry g = geometry(x.shape, y.shape);
    const T* px = x.as<T>();
    T* py = y.as<T>();
    const int64_t grain = rows_per_thread(g.out_width * g.out_channels);
    parallel_ranges(context, y.shape[0] * g.out_height, grain, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.out_height;
        const int64_t h = row % g.out_height * stride;
        const T* from = px + (n * g.height + h) * g.width * g.channels;  // shape (W, C)
        T* to = py + row * g.out_width * g.out_channels;                 // shape (Q, K)
        for (int64_t q = 0; q < g.out_width; ++q) {
          T* pixel = to + q * g.out_channels;
          std::fill_n(pixel, g.first, T(0));
          std::copy_n(from + q * stride * g.channels, g.channels, pixel + g.first);
          std::fill(pixel + g.first + g.channels, pixel + g.out_channels, T(0));
        }
      }
    });
  });
}

void subsample_pad_backward(CpuContext& context, int64_t stride, const TensorView& dy, GradMode mode,
                            const TensorView& dx) {
  visit_element(dx.dtype, "subsample_pad_backward", [&]<class T>(std::type_identity<T>) {
    const Geometry g = geometry(dx.shape, dy.shape);
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    const bool add = mode == GradMode::accumulate;
    const int64_t grain = rows_per_thread(g.width * g.channels);
    parallel_ranges(context, dx.shape[0] * g.height, grain, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.height;
        const int64_t h = row % g.height;
        T* to = pdx + row * g.width * g.channels;  // shape (W, C)
        if (!add) {
          std::fill_n(to, g.width * g.channels, T(0));
        }
        if (h % stride != 0) {
          continue;
        }
        const T* from = pdy + (n * g.out_height + h / stride) * g.out_width * g.out_channels + g.first;  // shape (Q, K)
        for (int64_t q = 0; q < g.out_width; ++q) {
          const T* in = from + q * g.out_channels;
          T* out = to + q * stride * g.channels;
          if (add) {
            for (int64_t c = 0; c < g.channels; ++c) {
              out[c] = T(value_of(out[c]) + value_of(in[c]));
            }
          } else {
            std::copy_n(in, g.channels, out);
          }
        }
      }
    });
  });
}

}  // namespace lockstep::ops::backend

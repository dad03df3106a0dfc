#include <lockstep/kernels/pool2d.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/runtime/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

constexpr int64_t kBlock = 64;      // channels handled together in local arrays
constexpr int64_t kGrain = 16384;   // elements that are worth a thread
constexpr int64_t kPixelsInT = 64;  // pixels summed in the tensor's own type before the sums are joined in double

int64_t grain_of(int64_t elements_per_item) {
  return std::max(int64_t{1}, kGrain / std::max(int64_t{1}, elements_per_item));
}

/// [first, last) of the input covered by window `out` of one axis.
struct Window {
  int64_t first;
  int64_t last;
};

Window window(const PoolDesc& desc, std::size_t axis, int64_t out, int64_t extent) {
  const int64_t begin = out * desc.stride[axis] - desc.pad_before[axis];
  return {std::max(int64_t{0}, begin), std::min(extent, begin + desc.kernel[axis])};
}

/// [first, last) of the windows of one axis that cover input `in`.
Window covering(const PoolDesc& desc, std::size_t axis, int64_t in, int64_t outputs) {
  const int64_t stride = desc.stride[axis];
  const int64_t to = in + desc.pad_before[axis];
  const int64_t from = to - desc.kernel[axis] + 1;  // a window that covers `in` starts in [from, to]
  return {from <= 0 ? 0 : (from + stride - 1) / stride, std::min(outputs, to / stride + 1)};
}

/// The winners of one window for `count` <= kBlock channels. x: channel 0 of the block of image n, pixels `channels`
/// apart.
template <bool kIndex, class T>
void pool_window(const T* x, int64_t width, int64_t channels, Window rows, Window columns, int64_t count, T* y,
                 std::int32_t* index) {
  T best[kBlock];
  std::int32_t winner[kBlock];
  const T* pixel = x + (rows.first * width + columns.first) * channels;
  for (int64_t c = 0; c < count; ++c) {
    best[c] = pixel[c];
    winner[c] = static_cast<std::int32_t>(rows.first * width + columns.first);
  }
  for (int64_t h = rows.first; h < rows.last; ++h) {
    for (int64_t w = columns.first; w < columns.last; ++w) {
      pixel = x + (h * width + w) * channels;
      const auto here = static_cast<std::int32_t>(h * width + w);
      for (int64_t c = 0; c < count; ++c) {
        const T b = best[c];
        const T v = pixel[c];
        const bool wins = !(v <= b) & (b == b);  // a NaN wins once and then stays
        best[c] = wins ? v : b;
        if constexpr (kIndex) {
          winner[c] = wins ? here : winner[c];
        }
      }
    }
  }
  std::copy_n(best, count, y);
  if constexpr (kIndex) {
    std::copy_n(winner, count, index);
  }
}

}  // namespace

void max_pool2d_forward(CpuContext& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  visit_compute(x.dtype, "max_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    std::int32_t* pi = index.given() ? index.as<std::int32_t>() : nullptr;
    const int64_t height = x.shape[1];
    const int64_t width = x.shape[2];
    const int64_t channels = x.shape[3];
    const int64_t out_height = y.shape[1];
    const int64_t out_width = y.shape[2];
    parallel_ranges(context, y.shape[0] * out_height, grain_of(out_width * channels), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* image = px + row / out_height * height * width * channels;  // (H, W, C)
        const Window rows = window(desc, 0, row % out_height, height);
        for (int64_t q = 0; q < out_width; ++q) {
          const Window columns = window(desc, 1, q, width);
          const int64_t out = (row * out_width + q) * channels;
          for (int64_t c = 0; c < channels; c += kBlock) {
            const int64_t count = std::min(kBlock, channels - c);
            if (pi != nullptr) {
              pool_window<true>(image + c, width, channels, rows, columns, count, py + out + c, pi + out + c);
            } else {
              pool_window<false, T>(image + c, width, channels, rows, columns, count, py + out + c, nullptr);
            }
          }
        }
      }
    });
  });
}

// Every element of dx gathers from the windows that cover it, in row-major order: no two threads write the same place.
void max_pool2d_backward(CpuContext& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx) {
  visit_compute(dx.dtype, "max_pool2d_backward", [&]<class T>(std::type_identity<T>) {
    const T* pdy = dy.as<T>();
    const auto* pi = index.as<std::int32_t>();
    T* pdx = dx.as<T>();
    const int64_t height = dx.shape[1];
    const int64_t width = dx.shape[2];
    const int64_t channels = dx.shape[3];
    const int64_t out_height = dy.shape[1];
    const int64_t out_width = dy.shape[2];
    parallel_ranges(context, dx.shape[0] * height, grain_of(width * channels), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t image = row / height * out_height;  // first output row of the image
        const int64_t h = row % height;
        const Window rows = covering(desc, 0, h, out_height);
        for (int64_t w = 0; w < width; ++w) {
          const Window columns = covering(desc, 1, w, out_width);
          const auto here = static_cast<std::int32_t>(h * width + w);
          T* to = pdx + (row * width + w) * channels;
          for (int64_t first = 0; first < channels; first += kBlock) {
            const int64_t count = std::min(kBlock, channels - first);
            T sum[kBlock] = {};
            for (int64_t p = rows.first; p < rows.last; ++p) {
              for (int64_t q = columns.first; q < columns.last; ++q) {
                const int64_t from = ((image + p) * out_width + q) * channels + first;
                const T* g = pdy + from;
                const std::int32_t* winner = pi + from;
                for (int64_t c = 0; c < count; ++c) {
                  const T v = g[c];
                  sum[c] += winner[c] == here ? v : T(0);
                }
              }
            }
            std::copy_n(sum, count, to + first);
          }
        }
      }
    });
  });
}

void global_average_pool_forward(CpuContext& context, const TensorView& x, const TensorView& y) {
  visit_compute(x.dtype, "global_average_pool_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    const int64_t pixels = x.shape[1] * x.shape[2];
    const int64_t channels = x.shape[3];
    const int64_t blocks = (channels + kBlock - 1) / kBlock;
    const int64_t grain = grain_of(pixels * std::min(kBlock, channels));
    parallel_ranges(context, x.shape[0] * blocks, grain, [=](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t n = item / blocks;
        const int64_t first = item % blocks * kBlock;
        const int64_t count = std::min(kBlock, channels - first);
        const T* image = px + n * pixels * channels + first;  // (H * W, C)
        double total[kBlock] = {};
        for (int64_t part = 0; part < pixels; part += kPixelsInT) {
          T sum[kBlock] = {};
          for (int64_t i = part; i < std::min(pixels, part + kPixelsInT); ++i) {
            for (int64_t c = 0; c < count; ++c) {
              sum[c] += image[i * channels + c];
            }
          }
          for (int64_t c = 0; c < count; ++c) {
            total[c] += static_cast<double>(sum[c]);
          }
        }
        for (int64_t c = 0; c < count; ++c) {
          py[n * channels + first + c] = static_cast<T>(total[c] / static_cast<double>(pixels));
        }
      }
    });
  });
}

void global_average_pool_backward(CpuContext& context, const TensorView& dy, const TensorView& dx) {
  visit_compute(dx.dtype, "global_average_pool_backward", [&]<class T>(std::type_identity<T>) {
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    const int64_t pixels = dx.shape[1] * dx.shape[2];
    const int64_t channels = dx.shape[3];
    parallel_ranges(context, dx.shape[0] * pixels, grain_of(channels), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* from = pdy + i / pixels * channels;
        T* to = pdx + i * channels;
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = from[c] / static_cast<T>(pixels);
        }
      }
    });
  });
}

}  // namespace lockstep::ops::backend

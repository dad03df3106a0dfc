#include <lockstep/kernels/average_pool2d.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/pool_window.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kPixelsInT = 64;  // number of pixels that are summed in Value<T>; then these sums are added in double

}  // namespace

void average_pool2d_forward(CpuContext& context, const PoolDesc& desc, AverageOver over, const TensorView& x,
                            const TensorView& y) {
  visit_element(x.dtype, "average_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    const int64_t width = x.shape[2];
    const int64_t channels = x.shape[3];
    const int64_t area = desc.kernel[0] * desc.kernel[1];
    for_windows(context, desc, x.shape, y.shape, [=](const PoolTile& tile) {
      double sum[kPoolBlock] = {};
      for (int64_t h = tile.rows.first; h < tile.rows.last; ++h) {
        for (int64_t w = tile.columns.first; w < tile.columns.last; ++w) {
          const T* pixel = px + tile.image + (h * width + w) * channels;
          for (int64_t c = 0; c < tile.count; ++c) {
            sum[c] += static_cast<double>(value_of(pixel[c]));
          }
        }
      }
      const auto divisor =
          static_cast<double>(over == AverageOver::window ? area : tile.rows.size() * tile.columns.size());
      for (int64_t c = 0; c < tile.count; ++c) {
        py[tile.offset + c] = element_of<T>(sum[c] / divisor);
      }
    });
  });
}

// Each element of dx is a sum over the windows that cover this element. One thread computes the sum, so no two threads
// write one element.
void average_pool2d_backward(CpuContext& context, const PoolDesc& desc, AverageOver over, const TensorView& dy,
                             const TensorView& dx) {
  visit_element(dx.dtype, "average_pool2d_backward", [&]<class T>(std::type_identity<T>) {
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    const int64_t height = dx.shape[1];
    const int64_t width = dx.shape[2];
    const int64_t channels = dx.shape[3];
    const int64_t out_width = dy.shape[2];
    const int64_t area = desc.kernel[0] * desc.kernel[1];
    for_covered(context, desc, dx.shape, dy.shape, [=](const PoolTile& tile) {
      double sum[kPoolBlock] = {};
      for (int64_t p = tile.rows.first; p < tile.rows.last; ++p) {
        for (int64_t q = tile.columns.first; q < tile.columns.last; ++q) {
          const auto divisor = static_cast<double>(over == AverageOver::window ? area
                                                                               : covered(desc, 0, p, height).size() *
                                                                                     covered(desc, 1, q, width).size());
          const T* g = pdy + tile.image + (p * out_width + q) * channels;
          for (int64_t c = 0; c < tile.count; ++c) {
            sum[c] += static_cast<double>(value_of(g[c])) / divisor;
          }
        }
      }
      for (int64_t c = 0; c < tile.count; ++c) {
        pdx[tile.offset + c] = element_of<T>(sum[c]);
      }
    });
  });
}

void global_average_pool_forward(CpuContext& context, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "global_average_pool_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    const int64_t pixels = x.shape[1] * x.shape[2];
    const int64_t channels = x.shape[3];
    const int64_t blocks = (channels + kPoolBlock - 1) / kPoolBlock;
    const int64_t grain = pool_grain(pixels * std::min(kPoolBlock, channels));
    parallel_ranges(context, x.shape[0] * blocks, grain, [=](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t n = item / blocks;
        const int64_t first = item % blocks * kPoolBlock;
        const int64_t count = std::min(kPoolBlock, channels - first);
        const T* image = px + n * pixels * channels + first;  // shape (H * W, C)
        double total[kPoolBlock] = {};
        for (int64_t part = 0; part < pixels; part += kPixelsInT) {
          Value<T> sum[kPoolBlock] = {};
          for (int64_t i = part; i < std::min(pixels, part + kPixelsInT); ++i) {
            for (int64_t c = 0; c < count; ++c) {
              sum[c] += value_of(image[i * channels + c]);
            }
          }
          for (int64_t c = 0; c < count; ++c) {
            total[c] += static_cast<double>(sum[c]);
          }
        }
        for (int64_t c = 0; c < count; ++c) {
          py[n * channels + first + c] = element_of<T>(total[c] / static_cast<double>(pixels));
        }
      }
    });
  });
}

void global_average_pool_backward(CpuContext& context, const TensorView& dy, const TensorView& dx) {
  visit_element(dx.dtype, "global_average_pool_backward", [&]<class T>(std::type_identity<T>) {
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    const int64_t pixels = dx.shape[1] * dx.shape[2];
    const int64_t channels = dx.shape[3];
    parallel_ranges(context, dx.shape[0] * pixels, pool_grain(channels), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* from = pdy + i / pixels * channels;
        T* to = pdx + i * channels;
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = T(value_of(from[c]) / static_cast<Value<T>>(pixels));
        }
      }
    });
  });
}

}  // namespace lockstep::ops::backend

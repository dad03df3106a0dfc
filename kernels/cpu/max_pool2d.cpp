#include <lockstep/kernels/max_pool2d.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/pool_window.hpp>

namespace lockstep::ops::backend {
namespace {

/// Finds the largest element of one window in each channel of the tile. x points to the tile's first channel in pixel
/// (0, 0); pixels are `channels` elements apart.
template <bool kIndex, class T>
void pool_window(const T* x, int64_t width, int64_t channels, const PoolTile& tile, T* y, std::int32_t* index) {
  Value<T> best[kPoolBlock];
  std::int32_t winner[kPoolBlock];
  const int64_t count = tile.count;
  const int64_t start = tile.rows.first * width + tile.columns.first;
  const T* pixel = x + start * channels;
  for (int64_t c = 0; c < count; ++c) {
    best[c] = value_of(pixel[c]);
    winner[c] = static_cast<std::int32_t>(start);
  }
  for (int64_t h = tile.rows.first; h < tile.rows.last; ++h) {
    for (int64_t w = tile.columns.first; w < tile.columns.last; ++w) {
      pixel = x + (h * width + w) * channels;
      const auto here = static_cast<std::int32_t>(h * width + w);
      for (int64_t c = 0; c < count; ++c) {
        const Value<T> b = best[c];
        const Value<T> v = value_of(pixel[c]);
        const bool wins = !(v <= b) & (b == b);  // a NaN replaces any number, and no value replaces a NaN
        best[c] = wins ? v : b;
        if constexpr (kIndex) {
          winner[c] = wins ? here : winner[c];
        }
      }
    }
  }
  store_values(best, count, y);
  if constexpr (kIndex) {
    std::copy_n(winner, count, index);
  }
}

}  // namespace

void max_pool2d_forward(CpuContext& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  visit_element(x.dtype, "max_pool2d_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    std::int32_t* pi = index.given() ? index.as<std::int32_t>() : nullptr;
    const int64_t width = x.shape[2];
    const int64_t channels = x.shape[3];
    for_windows(context, desc, x.shape, y.shape, [=](const PoolTile& tile) {
      if (pi != nullptr) {
        pool_window<true>(px + tile.image, width, channels, tile, py + tile.offset, pi + tile.offset);
      } else {
        pool_window<false, T>(px + tile.image, width, channels, tile, py + tile.offset, nullptr);
      }
    });
  });
}

// Each element of dx is the sum over the windows that cover this element, in row-major order. One thread
// computes the sum, so no two threads write one element.
void max_pool2d_backward(CpuContext& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx) {
  visit_element(dx.dtype, "max_pool2d_backward", [&]<class T>(std::type_identity<T>) {
    const T* pdy = dy.as<T>();
    const std::int32_t* pi = index.as<std::int32_t>();
    T* pdx = dx.as<T>();
    const int64_t width = dx.shape[2];
    const int64_t channels = dx.shape[3];
    const int64_t out_width = dy.shape[2];
    for_covered(context, desc, dx.shape, dy.shape, [=](const PoolTile& tile) {
      const auto here = static_cast<std::int32_t>(tile.row * width + tile.column);
      Value<T> sum[kPoolBlock] = {};
      for (int64_t p = tile.rows.first; p < tile.rows.last; ++p) {
        for (int64_t q = tile.columns.first; q < tile.columns.last; ++q) {
          const int64_t from = tile.image + (p * out_width + q) * channels;
          const T* g = pdy + from;
          const std::int32_t* winner = pi + from;
          for (int64_t c = 0; c < tile.count; ++c) {
            const Value<T> v = value_of(g[c]);
            sum[c] += winner[c] == here ? v : 0;
          }
        }
      }
      store_values(sum, tile.count, pdx + tile.offset);
    });
  });
}

}  // namespace lockstep::ops::backend

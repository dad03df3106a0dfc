#include <lockstep/kernels/batch_norm_pool.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/batch_norm_sums.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/pool_window.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;
/// Computes g for the tile's channels of one pixel of x: the sum of dy over the windows whose maximum is this pixel.
template <class T>
void gather(const PoolDesc& desc, const PoolTile& tile, const T* dy, const std::uint8_t* index, int64_t out_width,
            int64_t channels, Value<T>* g) {
  std::fill_n(g, tile.count, Value<T>(0));
  for (int64_t p = tile.rows.first; p < tile.rows.last; ++p) {
    const int64_t r = tile.row - (p * desc.stride[0] - desc.pad_before[0]);
    for (int64_t q = tile.columns.first; q < tile.columns.last; ++q) {
      const int64_t s = tile.column - (q * desc.stride[1] - desc.pad_before[1]);
      const auto here = static_cast<std::uint8_t>(3 * r + s);
      const int64_t from = tile.image + (p * out_width + q) * channels;
      for (int64_t c = 0; c < tile.count; ++c) {
        const Value<T> v = value_of(dy[from + c]);
        g[c] += index[from + c] == here ? v : 0;
      }
    }
  }
}

/// Sums g, the gradient that gather() computes, and g * (x - mean) * inv_std over the pixels [first, last) of x, for
/// each channel. The sums (2, C) are double.
template <class T>
void chunk_sums(const PoolDesc& desc, const Shape& shape, const Shape& pooled, int64_t first, int64_t last, const T* dy,
                const std::uint8_t* index, const T* x, const Value<T>* coefficients, double* sums) {
  const int64_t channels = shape[3];
  const Value<T>* mean = coefficients + 2 * channels;
  std::fill_n(sums, 2 * channels, 0.0);
  Value<T> g[kPoolBlock];
  for (int64_t pixel = first; pixel < last; ++pixel) {
    const int64_t row = pixel / shape[2] % shape[1];
    const int64_t column = pixel % shape[2];
    const int64_t image = pixel / shape[2] / shape[1] * pooled[1] * pooled[2] * channels;
    for (int64_t c = 0; c < channels; c += kPoolBlock) {
      const PoolTile tile{image + c,
                          row,
                          column,
                          covering(desc, 0, row, pooled[1]),
                          covering(desc, 1, column, pooled[2]),
                          pixel * channels + c,
                          std::min(kPoolBlock, channels - c)};
      gather(desc, tile, dy, index, pooled[2], channels, g);
      for (int64_t k = 0; k < tile.count; ++k) {
        sums[c + k] += static_cast<double>(g[k]);
        sums[channels + c + k] += static_cast<double>(g[k] * (value_of(x[tile.offset + k]) - mean[c + k]));
      }
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    sums[channels + c] *= static_cast<double>(coefficients[3 * channels + c]);
  }
}

}  // namespace

void batch_norm_pool_forward(CpuContext& context, const PoolDesc& desc, const TensorView& x,
                             const TensorView& coefficients, const TensorView& y, const TensorView& index) {
  visit_element(x.dtype, "batch_norm_pool_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    const auto* scale = coefficients.as<Value<T>>();
    T* py = y.as<T>();
    auto* pi = index.as<std::uint8_t>();
    const int64_t width = x.shape[2];
    const int64_t channels = x.shape[3];
    for_windows(context, desc, x.shape, y.shape, [=](const PoolTile& tile) {
      Value<T> best[kPoolBlock] = {};
      std::uint8_t winner[kPoolBlock];
      std::fill_n(winner, kPoolBlock, kNoWinner);
      const int64_t first = tile.offset % channels;
      const int64_t top = tile.row * desc.stride[0] - desc.pad_before[0];
      const int64_t left = tile.column * desc.stride[1] - desc.pad_before[1];
      for (int64_t h = tile.rows.first; h < tile.rows.last; ++h) {
        for (int64_t w = tile.columns.first; w < tile.columns.last; ++w) {
          const T* pixel = px + tile.image + (h * width + w) * channels;
          const auto here = static_cast<std::uint8_t>(3 * (h - top) + w - left);
          for (int64_t c = 0; c < tile.count; ++c) {
            const Value<T> v = value_of(T(value_of(pixel[c]) * scale[first + c] + scale[channels + first + c]));
            const Value<T> b = best[c];
            const bool wins = !(v <= b) & (b == b);  // a NaN replaces any number, and no value replaces a NaN
            best[c] = wins ? v : b;
            winner[c] = wins ? here : winner[c];
          }
        }
      }
      store_values(best, tile.count, py + tile.offset);
      for (int64_t c = 0; c < tile.count; ++c) {
        pi[tile.offset + c] = best[c] > 0 ? winner[c] : kNoWinner;  // NaN and 0 pass no gradient
      }
    });
  });
}

void batch_norm_pool_backward_reduce(CpuContext& context, const PoolDesc& desc, const TensorView& dy,
                                     const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                     const TensorView& valid, GradMode mode, const TensorView& sums,
                                     const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  const Layout layout(x.shape);
  const int64_t rows = valid_rows("batch_norm_pool_backward_reduce", layout, x, valid);
  visit_element(x.dtype, "batch_norm_pool_backward_reduce", [&]<class T>(std::type_identity<T>) {
    using V = Value<T>;
    const Slots slots(layout, workspace, sizeof(V));
    const int64_t chunk_rows = layout.chunk / layout.channels;
    const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    parallel_ranges(context, chunks, layout.chunk_grain(), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        chunk_sums(desc, x.shape, dy.shape, i * chunk_rows, std::min(rows, (i + 1) * chunk_rows), dy.as<T>(),
                   index.as<std::uint8_t>(), x.as<T>(), coefficients.as<V>(), slots.joined(i));
      }
    });
    const bool wanted = mode != GradMode::ignore;
    join_sums(context, chunks, layout.channels, slots, mode, sums.as<V>(), wanted ? dweight.as<V>() : nullptr,
              wanted ? dbias.as<V>() : nullptr);
  });
}

void batch_norm_pool_backward_apply(CpuContext& context, const PoolDesc& desc, const TensorView& dy,
                                    const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                    const TensorView& sums, const TensorView& stats, const TensorView& valid,
                                    const TensorView& dx) {
  const Layout layout(x.shape);
  const int64_t end = valid_rows("batch_norm_pool_backward_apply", layout, x, valid) * layout.channels;
  visit_element(x.dtype, "batch_norm_pool_backward_apply", [&]<class T>(std::type_identity<T>) {
    using V = Value<T>;
    const T* pdy = dy.as<T>();
    const auto* pi = index.as<std::uint8_t>();
    const T* px = x.as<T>();
    const V* k = coefficients.as<V>();
    const V* total = sums.as<V>();
    T* pdx = dx.as<T>();
    const int64_t channels = layout.channels;
    const int64_t out_width = dy.shape[2];
    const auto count = static_cast<double>(stats.as<V>()[2 * channels]);
    const double inv_count = count > 0 ? 1 / count : 0.0;
    for_covered(context, desc, x.shape, dy.shape, [=](const PoolTile& tile) {
      T* to = pdx + tile.offset;
      if (tile.offset >= end) {
        std::fill_n(to, tile.count, T(0));
        return;
      }
      V g[kPoolBlock];
      gather(desc, tile, pdy, pi, out_width, channels, g);
      const int64_t first = tile.offset % channels;
      for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t c = first + i;
        const double step = -static_cast<double>(k[c]) * inv_count;
        const auto inv_std = static_cast<double>(k[3 * channels + c]);
        const V slope = static_cast<V>(step * inv_std * static_cast<double>(total[channels + c]));
        const V offset = static_cast<V>(step * static_cast<double>(total[c]));
        to[i] = T(k[c] * g[i] + ((value_of(px[tile.offset + i]) - k[2 * channels + c]) * slope + offset));
      }
    });
  });
}

}  // namespace lockstep::ops::backend

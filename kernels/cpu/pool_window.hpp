#pragma once

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/runtime/context/parallel.hpp>

/// Computes which elements belong to which pooling window, for max_pool2d and average_pool2d.
namespace lockstep::ops::backend {

inline constexpr std::int64_t kPoolBlock = 64;  ///< largest number of channels of a PoolTile

/// Returns how many items of `elements_per_item` elements justify another thread.
[[nodiscard]] inline std::int64_t pool_grain(std::int64_t elements_per_item) {
  return std::max(std::int64_t{1}, 16384 / std::max(std::int64_t{1}, elements_per_item));
}

/// The pixels [first, last) along one axis.
struct PoolRange {
  std::int64_t first;
  std::int64_t last;
  [[nodiscard]] std::int64_t size() const { return last - first; }
};

/// Returns the input pixels that window `out` covers along one axis with `extent` pixels.
[[nodiscard]] inline PoolRange covered(const PoolDesc& desc, std::size_t axis, std::int64_t out, std::int64_t extent) {
  const std::int64_t begin = out * desc.stride[axis] - desc.pad_before[axis];
  return {std::max(std::int64_t{0}, begin), std::min(extent, begin + desc.kernel[axis])};
}

/// Returns the windows that cover input pixel `in` along one axis: the windows that start in [to - kernel + 1, to].
/// Here `to` = in + pad_before: the pixel's index when the padding before the image is counted, too.
[[nodiscard]] inline PoolRange covering(const PoolDesc& desc, std::size_t axis, std::int64_t in, std::int64_t outputs) {
  const std::int64_t stride = desc.stride[axis];
  const std::int64_t to = in + desc.pad_before[axis];
  const std::int64_t from = to - desc.kernel[axis] + 1;
  return {from <= 0 ? 0 : (from + stride - 1) / stride, std::min(outputs, to / stride + 1)};
}

/// Up to kPoolBlock channels of one pixel, and the pixels of the other tensor that the pooling connects with this
/// pixel. If the pixel is in x, the other tensor is y. If the pixel is in y, the other tensor is x.
struct PoolTile {
  std::int64_t image;        ///< index in the other tensor: the tile's first channel in pixel 0 of the image
  std::int64_t row, column;  ///< row and column of the pixel
  PoolRange rows, columns;   ///< connected pixels: in y for a pixel of x, in x for a pixel of y
  std::int64_t offset;       ///< index of the tile's first channel in the pixel's own tensor
  std::int64_t count;        ///< number of channels
};

/// Calls f(tile) for all pixels of a tensor with shape `own` (N, H, W, C), in parallel over rows. The other tensor of
/// the pooling has shape `other` (N, P, Q, C). range(axis, i) returns, for index i on `axis` of the first tensor, the
/// indices in the other tensor that the pooling connects with index i.
template <class Range, class F>
void for_pool_tiles(CpuContext& context, const Shape& own, const Shape& other, Range range, F f) {
  const std::int64_t height = own[1];
  const std::int64_t width = own[2];
  const std::int64_t channels = own[3];
  parallel_ranges(context, own[0] * height, pool_grain(width * channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::int64_t image = line / height * other[1] * other[2] * channels;
      const std::int64_t row = line % height;
      const PoolRange rows = range(std::size_t{0}, row);
      for (std::int64_t column = 0; column < width; ++column) {
        const PoolRange columns = range(std::size_t{1}, column);
        for (std::int64_t c = 0; c < channels; c += kPoolBlock) {
          f(PoolTile{image + c, row, column, rows, columns, (line * width + column) * channels + c,
                     std::min(kPoolBlock, channels - c)});
        }
      }
    }
  });
}

/// Calls f(tile) for all pixels of the pooled tensor y. The tile's rows and columns are the pixel's window in x.
template <class F>
void for_windows(CpuContext& context, const PoolDesc& desc, const Shape& x, const Shape& y, F f) {
  const auto range = [&](std::size_t axis, std::int64_t i) {
    return covered(desc, axis, i, x[1 + static_cast<int>(axis)]);
  };
  for_pool_tiles(context, y, x, range, f);
}

/// Calls f(tile) for all pixels of x. The tile's rows and columns are the windows of y that cover the pixel.
template <class F>
void for_covered(CpuContext& context, const PoolDesc& desc, const Shape& x, const Shape& y, F f) {
  const auto range = [&](std::size_t axis, std::int64_t i) {
    return covering(desc, axis, i, y[1 + static_cast<int>(axis)]);
  };
  for_pool_tiles(context, x, y, range, f);
}

}  // namespace lockstep::ops::backend

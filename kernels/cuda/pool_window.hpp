#pragma once

#include <cstdint>

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/kernels/pool2d.hpp>

/// Computes which elements belong to which pooling window, for the kernels of max_pool2d and average_pool2d. A thread
/// takes a piece: kCount channels of one pixel of y (forward) or dx (backward). Neighbouring threads take neighbouring
/// pieces. Elements that windows share are read again from caches, so memory transfers each input and output once.
namespace lockstep::gpu {

struct PoolAxis {
  std::int64_t extent, outputs;  ///< numbers of pixels along this axis: x has `extent`, y has `outputs`
  std::int64_t kernel, stride, before;
};

struct PoolGeometry {
  PoolAxis rows, columns;
  std::int64_t channels;
};

/// Returns the geometry of a pooling from x (N, H, W, C) to y (N, P, Q, C).
[[nodiscard]] inline PoolGeometry pool_geometry(const ops::PoolDesc& desc, const Shape& x, const Shape& y) {
  const auto axis = [&](int i) {
    const auto u = static_cast<std::size_t>(i);
    return PoolAxis{x[1 + i], y[1 + i], desc.kernel[u], desc.stride[u], desc.pad_before[u]};
  };
  return {axis(0), axis(1), x[3]};
}

/// The pixels [first, last) along one axis.
struct PoolRange {
  std::int64_t first, last;
};

/// Returns the range of input pixels that window number `out` covers along one axis.
__device__ inline PoolRange covered(const PoolAxis& axis, std::int64_t out) {
  const std::int64_t begin = out * axis.stride - axis.before;
  const std::int64_t end = begin + axis.kernel;
  return {begin > 0 ? begin : 0, end < axis.extent ? end : axis.extent};
}

/// Returns the range of windows that cover input pixel `in` along one axis: all w with w * stride in [from, to].
__device__ inline PoolRange covering(const PoolAxis& axis, std::int64_t in) {
  const std::int64_t to = in + axis.before;
  const std::int64_t from = to - axis.kernel + 1;
  const std::int64_t end = to / axis.stride + 1;
  return {from > 0 ? (from + axis.stride - 1) / axis.stride : 0, end < axis.outputs ? end : axis.outputs};
}

/// The pixel to which a piece of x or y belongs, and the connected pixels: the pixels of the other tensor (y for x, x
/// for y) that the pooling connects with this pixel. A piece is kCount channels of one pixel.
struct PoolPlace {
  std::int64_t row, column;
  PoolRange rows, columns;  ///< rows and columns of the other tensor's pixels that the pooling connects with this one
  std::int64_t image;       ///< index, in the other tensor, of the piece's first channel at pixel (0, 0) of the image
};

/// Returns the pixel of piece `i` of y, and the range of pixels of x in the window of this pixel.
template <int kCount>
__device__ PoolPlace window_of_piece(const PoolGeometry& g, std::int64_t i) {
  const std::int64_t per_pixel = g.channels / kCount;
  const std::int64_t pixel = i / per_pixel;
  const std::int64_t line = pixel / g.columns.outputs;
  const std::int64_t row = line % g.rows.outputs;
  const std::int64_t column = pixel % g.columns.outputs;
  return {row, column, covered(g.rows, row), covered(g.columns, column),
          line / g.rows.outputs * g.rows.extent * g.columns.extent * g.channels + i % per_pixel * kCount};
}

/// Returns the pixel of piece `i` of x, and the range of pixels of y whose windows cover this pixel.
template <int kCount>
__device__ PoolPlace windows_over_piece(const PoolGeometry& g, std::int64_t i) {
  const std::int64_t per_pixel = g.channels / kCount;
  const std::int64_t pixel = i / per_pixel;
  const std::int64_t line = pixel / g.columns.extent;
  const std::int64_t row = line % g.rows.extent;
  const std::int64_t column = pixel % g.columns.extent;
  return {row, column, covering(g.rows, row), covering(g.columns, column),
          line / g.rows.extent * g.rows.outputs * g.columns.outputs * g.channels + i % per_pixel * kCount};
}

}  // namespace lockstep::gpu

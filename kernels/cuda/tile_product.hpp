#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/cuda/activation.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Computes out(i, j) = sum over l of a(i, l) * b(l, j) for several products, in plain f32 without tensor cores. conv2d
/// (as an implicit product) and matmul share this code.
///
/// A block of 256 threads takes a tile of 64 x 64 outputs. Pieces of both operands, 16 terms at a time, go through
/// shared memory (8704 bytes), and a thread keeps 4 x 4 outputs in registers. An element from memory is used in 64
/// multiply-adds, and an element from shared memory in 4. Hence f32 arithmetic and shared memory bound the kernel, not
/// memory bandwidth. (An operand that computes coordinates also does integer divisions per load.)
///
/// A long sum with few outputs is split into parts, so that more blocks have work. The partial sums then go through a
/// workspace and are joined in order. The number of parts, and so the bits of the result, depend on the shape only.
///
/// A kernel reads a and b through operands. An operand calls the index i or j its `line`, the index l its `term`. It
/// has
///   Line line(product, index), Term term(index)   decode an index once, for many loads
///   float load(Line, Term)                        returns the element
///   bool along_sum()                              true if neighbours in memory are neighbours in l, not in i or j
namespace lockstep::gpu {

inline constexpr int kTileSide = 64;    // number of outputs of a block along i and along j
inline constexpr int kTileDepth = 16;   // number of terms of the sum that a block keeps in shared memory at a time
inline constexpr int kTileThread = 4;   // number of outputs of a thread along i and along j
inline constexpr int kTileBlock = 256;  // number of threads of a block: (kTileSide / kTileThread) squared
inline constexpr int kTilePadding = 4;  // unused floats after each row in shared memory, against bank conflicts

struct ProductSizes {
  std::int64_t products;
  std::int64_t rows, columns, sum;  ///< i, j and l run over [0, rows), [0, columns) and [0, sum)
  /// The sum has `splits` parts of `share` terms each; the last part may be shorter.
  std::int64_t splits, share;

  [[nodiscard]] std::size_t workspace_bytes() const {
    return splits == 1 ? 0 : static_cast<std::size_t>(splits * products * rows * columns) * sizeof(float);
  }
};

[[nodiscard]] inline ProductSizes product_sizes(std::int64_t products, std::int64_t rows, std::int64_t columns,
                                                std::int64_t sum) {
  constexpr std::int64_t kLeastShare = 512;  // least number of terms of a part: shorter parts would be slower
  constexpr std::int64_t kBlocks = 264;      // number of tiles that keep a large GPU busy
  const auto parts = [](std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; };
  const std::int64_t tiles = products * parts(rows, kTileSide) * parts(columns, kTileSide);
  const std::int64_t wanted = std::max<std::int64_t>(1, std::min(kBlocks / tiles, sum / kLeastShare));
  const std::int64_t share = parts(parts(sum, wanted), kTileDepth) * kTileDepth;
  return {products, rows, columns, sum, parts(sum, share), share};
}

/// The destination of a product: `to` is a row-major matrix that receives element (i, j). write() adds the bias to a
/// sum, then applies `function`. With `accumulate`, write() then adds the result to the element in `to`. F is a type of
/// activation.hpp.
template <class T, class F = Activated<ops::Activation::identity>>
struct ProductOutput {
  T* to;
  std::int64_t product_stride, row_stride;
  const float* bias;  ///< (products, columns), rows `bias_stride` apart; null without a bias
  std::int64_t bias_stride;
  bool accumulate;
  F function = {};

  __device__ void write(std::int64_t product, std::int64_t i, std::int64_t j, float value) const {
    T& element = to[product * product_stride + i * row_stride + j];
    if (bias != nullptr) {
      value += bias[product * bias_stride + j];
    }
    value = function.value(value);
    if (accumulate) {
      value += to_float(element);
    }
    element = from_float<T>(value);
  }
};

/// Loads one thread's elements of an operand into shared memory: four elements of each piece of 64 lines x 16 terms.
template <class Operand>
class TileLoader {
 public:
  using Line = decltype(std::declval<const Operand&>().line(0, 0));

  /// Decodes the lines that this thread loads: some of the 64 lines that begin with line `first`. The operand has
  /// `count` lines.
  __device__ TileLoader(const Operand& operand, std::int64_t product, std::int64_t first, std::int64_t count)
      : operand_(operand), left_(count - first) {
#pragma unroll
    for (int s = 0; s < kEach; ++s) {
      lines_[s] = operand.line(product, first + line_of(s));
    }
  }

  /// Loads the terms [l, l + kTileDepth) into `tile` (kTileDepth, lines). Stores zeros for terms at or after `end`, and
  /// for lines after the operand's last line.
  __device__ void load(std::int64_t l, std::int64_t end, float (*tile)[kTileSide + kTilePadding]) const {
#pragma unroll
    for (int s = 0; s < kEach; ++s) {
      const auto term = operand_.term(l + term_of(s));
      const bool inside = line_of(s) < left_ && l + term_of(s) < end;
      tile[term_of(s)][line_of(s)] = inside ? operand_.load(lines_[s], term) : 0.0F;
    }
  }

 private:
  static constexpr int kEach = kTileSide * kTileDepth / kTileBlock;

  __device__ int line_of(int s) const {
    const int e = static_cast<int>(threadIdx.x) + s * kTileBlock;
    return operand_.along_sum() ? e / kTileDepth : e % kTileSide;
  }
  __device__ int term_of(int s) const {
    const int e = static_cast<int>(threadIdx.x) + s * kTileBlock;
    return operand_.along_sum() ? e % kTileDepth : e / kTileSide;
  }

  const Operand& operand_;
  std::int64_t left_;
  Line lines_[kEach];
};

/// Computes tiles of outputs. A block takes one task after the other; a task is a tile of outputs of one part of one
/// product's sum. Part k of product p is written as product number k * products + p. The operands are a (products,
/// rows, sum) and b (products, sum, columns); out.to: (splits * products, rows, columns).
template <class A, class B, class T, class F>
__global__ void __launch_bounds__(kTileBlock) tile_product_kernel(ProductSizes s, A a, B b, ProductOutput<T, F> out) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(float, a_tile, [kTileDepth][kTileSide + kTilePadding]);
  LOCKSTEP_SHARED(float, b_tile, [kTileDepth][kTileSide + kTilePadding]);
  const std::int64_t row_tiles = (s.rows + kTileSide - 1) / kTileSide;
  const std::int64_t column_tiles = (s.columns + kTileSide - 1) / kTileSide;
  const int across = kTileSide / kTileThread;
  const int my_row = static_cast<int>(threadIdx.x) / across * kTileThread;  // first row of this thread, in the tile
  const int my_column = static_cast<int>(threadIdx.x) % across * kTileThread;
  for (std::int64_t task = blockIdx.x; task < s.splits * s.products * row_tiles * column_tiles; task += gridDim.x) {
    const std::int64_t part = task / column_tiles / row_tiles;
    const std::int64_t product = part % s.products;
    const std::int64_t row = task / column_tiles % row_tiles * kTileSide;
    const std::int64_t column = task % column_tiles * kTileSide;
    const std::int64_t begin = part / s.products * s.share;
    const std::int64_t end = begin + s.share < s.sum ? begin + s.share : s.sum;
    const bool has_outputs = row + my_row < s.rows && column + my_column < s.columns;
    const TileLoader<A> a_loader(a, product, row, s.rows);
    const TileLoader<B> b_loader(b, product, column, s.columns);
    float total[kTileThread][kTileThread] = {};
    for (std::int64_t l = begin; l < end; l += kTileDepth) {
      a_loader.load(l, end, a_tile);
      b_loader.load(l, end, b_tile);
      __syncthreads();
      for (int k = 0; k < kTileDepth && has_outputs; ++k) {
#pragma unroll
        for (int i = 0; i < kTileThread; ++i) {
#pragma unroll
          for (int j = 0; j < kTileThread; ++j) {
            total[i][j] = fmaf(a_tile[k][my_row + i], b_tile[k][my_column + j], total[i][j]);
          }
        }
      }
      // Waits until all threads have used this piece of the operands,
      // before the next piece overwrites this one
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kTileThread; ++i) {
#pragma unroll
      for (int j = 0; j < kTileThread; ++j) {
        if (row + my_row + i < s.rows && column + my_column + j < s.columns) {
          out.write(part, row + my_row + i, column + my_column + j, total[i][j]);
        }
      }
    }
  }
}

/// Joins the parts of a split sum: a thread takes an output, and adds the output's parts in the order of the splits.
/// partial: (splits, products, rows, columns); out.to: (products, rows, columns).
template <class T, class F>
__global__ void __launch_bounds__(kTileBlock)
    join_products_kernel(ProductSizes s, const float* partial, ProductOutput<T, F> out) {
  gpu::wait_for_earlier();
  const std::int64_t elements = s.products * s.rows * s.columns;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kTileBlock;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kTileBlock + threadIdx.x; e < elements; e += threads) {
    float total = 0.0F;
    for (std::int64_t split = 0; split < s.splits; ++split) {
      total += partial[split * elements + e];
    }
    out.write(e / s.columns / s.rows, e / s.columns % s.rows, e % s.columns, total);
  }
}

/// Enqueues the whole product: one launch, or two if the sum is split. workspace has s.workspace_bytes() bytes, aligned
/// to float.
template <class A, class B, class T, class F>
void tile_product(CudaContext& context, const ProductSizes& s, const A& a, const B& b, const ProductOutput<T, F>& out,
                  float* workspace) {
  const auto parts = [](std::int64_t extent) { return (extent + kTileSide - 1) / kTileSide; };
  const unsigned blocks = blocks_for(s.splits * s.products * parts(s.rows) * parts(s.columns), 1);
  if (s.splits == 1) {
    launch(tile_product_kernel<A, B, T, F>, dim3(blocks), dim3(kTileBlock), 0, context.stream(), s, a, b, out);
    return;
  }
  using Sum = Activated<ops::Activation::identity>;
  const ProductOutput<float, Sum> partial{workspace, s.rows * s.columns, s.columns, nullptr, 0, false};
  launch(tile_product_kernel<A, B, float, Sum>, dim3(blocks), dim3(kTileBlock), 0, context.stream(), s, a, b, partial);
  launch(join_products_kernel<T, F>, dim3(blocks_for(s.products * s.rows * s.columns, kTileBlock)), dim3(kTileBlock), 0,
         context.stream(), s, workspace, out);
}

}  // namespace lockstep::gpu

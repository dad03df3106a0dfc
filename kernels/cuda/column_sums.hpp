#pragma once

#include <cstdint>

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Sums each column of values (rows, columns), such as gradients of parameters that all rows share. A function f
/// computes the values row by row. Rows are cut into fixed chunks, whose sums are joined in order, without atomic
/// additions.
///
/// A block has 32 x 8 threads for a chunk: 32 neighbouring pieces of columns, so that a warp reads neighbouring memory
/// of one row, and 8 lanes that share the rows. Shared memory joins the sums of the lanes. Memory bandwidth bounds the
/// kernels: they move the bytes that f reads and writes for each element, and they write and read 4 bytes per sum,
/// column and chunk.
namespace lockstep::gpu {

inline constexpr int kSumLanes = 8;  // number of threads that share the rows of one column
inline constexpr std::int64_t kSumChunkRows = 64;
inline constexpr std::int64_t kMostSumChunks = 256;

/// Returns the number of rows of a chunk, which one block sums. The result depends on `rows` only.
[[nodiscard]] inline std::int64_t sum_chunk_rows(std::int64_t rows) {
  const std::int64_t share = (rows + kMostSumChunks - 1) / kMostSumChunks;
  return share > kSumChunkRows ? share : kSumChunkRows;
}

[[nodiscard]] inline std::int64_t sum_chunks(std::int64_t rows) {
  return (rows + sum_chunk_rows(rows) - 1) / sum_chunk_rows(rows);
}

/// Returns the bytes of the workspace that column_sums() needs for `sums` sums per column.
[[nodiscard]] inline std::size_t column_sums_bytes(std::int64_t rows, std::int64_t columns, int sums) {
  return static_cast<std::size_t>(sum_chunks(rows) * sums * columns) * sizeof(float);
}

/// Writes the sums over each chunk of rows to partial[chunk]. A block takes 32 pieces of kCount columns; lane k takes
/// rows k, k + 8, ... of the chunk. A thread calls f.at(column) once per piece. f.at(column) returns a function
/// take(row, sums). take adds the piece's values in this row to float sums[kSums][kCount], and may also write other
/// outputs. partial: (chunks, kSums, columns), or null to sum nothing.
template <class F, int kSums, int kCount>
__global__ void column_sums_kernel(F f, std::int64_t rows, std::int64_t columns, std::int64_t rows_per_chunk,
                                   std::int64_t chunks, float* partial) {
  gpu::wait_for_earlier();
  const std::int64_t pieces = columns / kCount;
  const std::int64_t tiles = (pieces + kWarp - 1) / kWarp;
  for (std::int64_t task = blockIdx.x; task < chunks * tiles; task += gridDim.x) {
    const std::int64_t chunk = task / tiles;
    const std::int64_t piece = task % tiles * kWarp + threadIdx.x;
    const std::int64_t begin = chunk * rows_per_chunk;
    const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
    float sums[kSums][kCount] = {};
    if (piece < pieces) {
      const auto take = f.at(piece * kCount);
      for (std::int64_t row = begin + threadIdx.y; row < end; row += kSumLanes) {
        take(row, sums);
      }
    }
    if (partial != nullptr) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        sum_lanes<kSumLanes>(sums[k]);
        if (threadIdx.y == 0 && piece < pieces) {
          Pack<float, kCount> total;
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            total.at[j] = sums[k][j];
          }
          store(partial + (chunk * kSums + k) * columns + piece * kCount, total);
        }
      }
    }
  }
}

template <int kSums>
struct ColumnSums {
  float* at[kSums];  ///< kSums arrays of (columns) numbers
};

/// Adds up the sums of all chunks for each column: lane k takes chunks k, k + 8, ... A block takes 32 columns. With
/// `add` adds the totals to sums, otherwise overwrites sums. partial: (chunks, kSums, columns); sums.at[k]: (columns).
template <int kSums>
__global__ void join_columns_kernel(std::int64_t columns, std::int64_t chunks, bool add, const float* partial,
                                    ColumnSums<kSums> sums) {
  gpu::wait_for_earlier();
  const std::int64_t tiles = (kSums * columns + kWarp - 1) / kWarp;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t column = tile * kWarp + threadIdx.x;
    float sum[1] = {};
    if (column < kSums * columns) {
      for (std::int64_t chunk = threadIdx.y; chunk < chunks; chunk += kSumLanes) {
        sum[0] += partial[chunk * kSums * columns + column];
      }
    }
    sum_lanes<kSumLanes>(sum);
    if (threadIdx.y == 0 && column < kSums * columns) {
      float* to = sums.at[0] + column;
#pragma unroll
      for (int k = 1; k < kSums; ++k) {
        to = column < k * columns ? to : sums.at[k] + (column - k * columns);
      }
      *to = add ? *to + sum[0] : sum[0];
    }
  }
}

/// Calls f for all (rows, columns) on the device. If `workspace` and `sums` are given, also sets sums to the sums of
/// f's values, or with `add` adds these to sums. If kCount > 1, columns must be a multiple of kCount, and workspace
/// must be aligned to 16 bytes.
template <int kSums, int kCount, class F>
void column_sums(CudaContext& context, F f, std::int64_t rows, std::int64_t columns, bool add, float* workspace,
                 const ColumnSums<kSums>& sums) {
  const dim3 block(kWarp, kSumLanes);
  const std::int64_t chunks = sum_chunks(rows);
  const std::int64_t tiles = (columns / kCount + kWarp - 1) / kWarp;
  if (chunks > 0) {
    launch(column_sums_kernel<F, kSums, kCount>, dim3(blocks_for(chunks * tiles, 1)), block, 0, context.stream(), f,
           rows, columns, sum_chunk_rows(rows), chunks, workspace);
  }
  if (sums.at[0] != nullptr) {
    launch(join_columns_kernel<kSums>, dim3(blocks_for(kSums * columns, kWarp)), block, 0, context.stream(), columns,
           chunks, add, workspace, sums);
  }
}

}  // namespace lockstep::gpu

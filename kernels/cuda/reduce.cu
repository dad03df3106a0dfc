// reduce_rows sums x (M, C) over its rows; the result is (C). sum and squared_norm sum all elements, or their squares;
// the result is one f64. all_finite looks for elements that are not finite.
//
// reduce_rows: a block of 256 threads takes 256 rows of a tile 128 bytes wide, so that a warp reads a whole cache line
// of each of 4 rows. A thread sums 8 rows in f32. Shared memory (4 or 8 KB) joins the sums of 32 threads in f64, and
// join_chunks joins the sums of all blocks. So tall, narrow matrices use many blocks, and no atomic addition changes
// the order. sum and squared_norm use the kernels of chunk_sum.hpp with chunks of 16384 elements. all_finite runs a
// grid-stride loop over 16-byte pieces; a vote of the warp joins the results of its lanes.
//
// Bound by memory bandwidth: x is read once, 4 bytes per element in f32 and 2 in 16 bits. Partial sums add 16 bytes: in
// reduce_rows per column and chunk of 256 rows, in sum and squared_norm per 16384 elements.

#include <cfloat>

#include <lockstep/kernels/cuda/chunk_sum.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kGroups = 8;                // number of threads that share a row of a tile; each takes 16 bytes
constexpr int kLanes = kBlock / kGroups;  // number of rows that a block takes at a time

/// Sets sums[column] to `total`, or with `accumulate` adds `total` to sums[column].
__device__ void store_sum(float* sums, std::int64_t column, double total, bool accumulate) {
  const double before = accumulate ? static_cast<double>(sums[column]) : 0.0;
  sums[column] = static_cast<float>(before + total);
}

/// In each block, sums a chunk of rows of a tile of columns. The tile is 128 bytes wide, so that a warp reads a whole
/// cache line of each of 4 rows. A thread sums its 8 rows of the chunk in f32; then the sums of the kLanes threads of a
/// column are joined in f64. With kVectors a thread takes adjacent columns, otherwise columns that are kGroups apart;
/// both ways add a column in the same order. x: (M, C), partial: (chunks, C), sums: (C). If there is only one chunk,
/// `partial` is null and the kernel writes to `sums`, otherwise only to `partial`.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kBlock)
    sum_chunks(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t tiles, std::int64_t chunks,
               bool accumulate, double* partial, float* sums) {
  gpu::wait_for_earlier();
  constexpr int kWidth = gpu::kPerVector<T>;
  constexpr int kTile = kGroups * kWidth;
  LOCKSTEP_SHARED(float, lanes, [kLanes][kTile]);
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  const int lane = static_cast<int>(threadIdx.x) / kGroups;
  for (std::int64_t item = blockIdx.x; item < tiles * chunks; item += gridDim.x) {
    const std::int64_t chunk = item / tiles;
    const std::int64_t first = item % tiles * kTile;  // first column of the tile
    const std::int64_t end = (chunk + 1) * kReduceRowsChunk < rows ? (chunk + 1) * kReduceRowsChunk : rows;
    float sum[kWidth] = {};
#pragma unroll
    for (int i = 0; i < kReduceRowsChunk / kLanes; ++i) {
      const std::int64_t row = chunk * kReduceRowsChunk + i * kLanes + lane;
      const T* from = x + row * columns + first;
      if (row < end) {
        if constexpr (kVectors) {
          if (first + group * kWidth < columns) {
            const gpu::Vector<T> values = gpu::load_vector(from + group * kWidth);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
              sum[j] += gpu::to_float(values.at[j]);
            }
          }
        } else {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            if (first + group + j * kGroups < columns) {
              sum[j] += gpu::to_float(from[group + j * kGroups]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      lanes[lane][kVectors ? group * kWidth + j : group + j * kGroups] = sum[j];
    }
    __syncthreads();
    const std::int64_t column = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kTile && column < columns) {
      double total = 0;
      for (int i = 0; i < kLanes; ++i) {
        total += static_cast<double>(lanes[i][threadIdx.x]);
      }
      if (partial != nullptr) {
        partial[chunk * columns + column] = total;
      } else {
        store_sum(sums, column, total, accumulate);
      }
    }
    __syncthreads();  // waits until all threads have read `lanes`, which the next item overwrites
  }
}

/// Adds the sums of all chunks, for 8 columns in each block. Each of the 32 threads of a column adds every 32nd chunk;
/// then the 32 results are added in order. partial: (chunks, C), sums: (C).
__global__ void __launch_bounds__(kBlock)
    join_chunks(const double* partial, std::int64_t columns, std::int64_t chunks, bool accumulate, float* sums) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(double, lanes, [kLanes][kGroups]);
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  const int lane = static_cast<int>(threadIdx.x) / kGroups;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kGroups;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroups; first < columns; first += stride) {
    const std::int64_t column = first + group;
    double total = 0;
    if (column < columns) {
      for (std::int64_t chunk = lane; chunk < chunks; chunk += kLanes) {
        total += partial[chunk * columns + column];
      }
    }
    lanes[lane][group] = total;
    __syncthreads();
    if (lane == 0 && column < columns) {
      for (int i = 1; i < kLanes; ++i) {
        total += lanes[i][group];
      }
      store_sum(sums, column, total, accumulate);
    }
    __syncthreads();  // waits until all threads have read `lanes`, which the next columns overwrite
  }
}

__device__ bool is_finite(float value) {
  return fabsf(value) <= FLT_MAX;  // false for NaN
}

/// Sets `found` to 1 if an element of x is not finite. The first `vectors` pieces of 16 bytes are loaded whole, all
/// later elements one by one. The store is atomic, as several warps may store 1. x: (count), found: scalar.
template <class T>
__global__ void __launch_bounds__(kBlock)
    finite_kernel(const T* x, std::int64_t count, std::int64_t vectors, std::int32_t* found) {
  gpu::wait_for_earlier();
  constexpr int kWidth = gpu::kPerVector<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kBlock;
  bool finite = true;
#pragma unroll 4
  for (std::int64_t v = thread; v < vectors; v += threads) {
    const gpu::Vector<T> values = gpu::load_vector(x + v * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      finite = finite && is_finite(gpu::to_float(values.at[j]));
    }
  }
  for (std::int64_t i = vectors * kWidth + thread; i < count; i += threads) {
    finite = finite && is_finite(gpu::to_float(x[i]));
  }
  if (__all_sync(gpu::kAllLanes, finite ? 1 : 0) == 0 && threadIdx.x % gpu::kWarp == 0) {
    atomicExch(found, 1);
  }
}

template <class T>
void reduce_rows_of(CudaContext& context, const T* x, std::int64_t rows, std::int64_t columns, GradMode mode,
                    float* sums, double* workspace) {
  constexpr int kTile = kGroups * gpu::kPerVector<T>;
  const bool accumulate = mode == GradMode::accumulate;
  const std::int64_t tiles = (columns + kTile - 1) / kTile;
  const std::int64_t chunks = rows <= kReduceRowsChunk ? 1 : (rows + kReduceRowsChunk - 1) / kReduceRowsChunk;
  double* partial = chunks == 1 ? nullptr : workspace;
  const bool vectors = gpu::aligned_to_vectors(x) && columns % gpu::kPerVector<T> == 0;
  gpu::launch(vectors ? sum_chunks<T, true> : sum_chunks<T, false>, dim3(gpu::blocks_for(tiles * chunks, 1)),
              dim3(kBlock), 0, context.stream(), x, rows, columns, tiles, chunks, accumulate, partial, sums);
  if (chunks > 1) {
    gpu::launch(join_chunks, dim3(gpu::blocks_for(columns, kGroups)), dim3(kBlock), 0, context.stream(), partial,
                columns, chunks, accumulate, sums);
  }
}

template <bool kSquare>
void sum_terms(CudaContext& context, std::string_view op, const TensorView& x, const TensorView& result,
               const TensorView& workspace) {
  gpu::visit_element(x.dtype, op, [&]<class T>(std::type_identity<T>) {
    const gpu::SumTerm<T, kSquare> term{gpu::data<const T>(x)};
    gpu::chunk_sum<kSumChunk, T>(context, term, x.numel(), gpu::aligned_to_vectors(term.x),
                                 gpu::data<double>(workspace), 1, false, gpu::data<double>(result));
  });
}

}  // namespace

void reduce_rows(CudaContext& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& workspace) {
  if (x.shape[1] == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "reduce_rows", [&]<class T>(std::type_identity<T>) {
    reduce_rows_of(context, static_cast<const T*>(x.data), x.shape[0], x.shape[1], mode, sums.as<float>(),
                   static_cast<double*>(workspace.data));
  });
}

void sum(CudaContext& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  sum_terms<false>(context, "sum", x, result, workspace);
}

void squared_norm(CudaContext& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  sum_terms<true>(context, "squared_norm", x, result, workspace);
}

void all_finite(CudaContext& context, const TensorView& x, const TensorView& found) {
  const std::int64_t count = x.numel();
  if (count == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "all_finite", [&]<class T>(std::type_identity<T>) {
    const auto* from = gpu::data<const T>(x);
    const std::int64_t vectors = gpu::aligned_to_vectors(from) ? count / gpu::kPerVector<T> : 0;
    const std::int64_t rest = count - vectors * gpu::kPerVector<T>;
    gpu::launch(finite_kernel<T>, dim3(gpu::blocks_for(vectors > rest ? vectors : rest, kBlock)), dim3(kBlock), 0,
                context.stream(), from, count, vectors, gpu::data<std::int32_t>(found));
  });
}

}  // namespace lockstep::ops::backend

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kGroups = 8;                // threads side by side in a row, 16 bytes each
constexpr int kLanes = kBlock / kGroups;  // rows side by side

/// sums[column] = or += total.
__device__ void store_sum(float* sums, std::int64_t column, double total, bool accumulate) {
  const double before = accumulate ? static_cast<double>(sums[column]) : 0.0;
  sums[column] = static_cast<float>(before + total);
}

/// A block sums one chunk of rows over a tile of columns; x is read once. The tile is 128 bytes wide, so that a warp
/// reads a whole cache line of each of 4 rows. A thread adds up its 8 rows of the chunk in f32, the 32 lanes are joined
/// in f64. With kVectors the columns of a thread lie side by side, else kGroups apart; either way a column's sum runs
/// in the same order. x: (M, C), partial: (chunks, C), or null for one chunk, whose sums go to sums: (C).
template <class T, bool kVectors>
__global__ void __launch_bounds__(kBlock)
    sum_chunks(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t tiles, std::int64_t chunks,
               bool accumulate, double* partial, float* sums) {
  constexpr int kWidth = gpu::kPerVector<T>;
  constexpr int kTile = kGroups * kWidth;
  LOCKSTEP_SHARED(float, lanes, [kLanes][kTile]);
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  const int lane = static_cast<int>(threadIdx.x) / kGroups;
  for (std::int64_t item = blockIdx.x; item < tiles * chunks; item += gridDim.x) {
    const std::int64_t chunk = item / tiles;
    const std::int64_t first = item % tiles * kTile;  // column
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
    __syncthreads();  // before the next item overwrites lanes
  }
}

/// A block joins the chunks of 8 columns: 32 threads a column, each every 32nd chunk, then their sums in order.
/// partial: (chunks, C), sums: (C).
__global__ void __launch_bounds__(kBlock)
    join_chunks(const double* partial, std::int64_t columns, std::int64_t chunks, bool accumulate, float* sums) {
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
    __syncthreads();  // before the next columns overwrite lanes
  }
}

/// A block a chunk of kSquaredNormChunk elements, 16 bytes a thread at a time, all in f64. With and without kVectors a
/// thread takes the same elements in the same order. x: (count), partial: (chunks).
template <class T, bool kVectors>
__global__ void __launch_bounds__(kBlock)
    square_chunks(const T* x, std::int64_t count, std::int64_t chunks, double* partial) {
  constexpr int kWidth = gpu::kPerVector<T>;
  constexpr int kPieces = static_cast<int>(kSquaredNormChunk) / (kBlock * kWidth);
  static_assert(kPieces * kBlock * kWidth == kSquaredNormChunk);
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    double sum = 0;
    const auto add = [&sum](T element) {
      const auto value = static_cast<double>(gpu::to_float(element));
      sum = fma(value, value, sum);
    };
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      const std::int64_t first =
          chunk * kSquaredNormChunk + (i * kBlock + static_cast<int>(threadIdx.x)) * std::int64_t{kWidth};
      if (kVectors && first + kWidth <= count) {
        const gpu::Vector<T> values = gpu::load_vector(x + first);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          add(values.at[j]);
        }
      } else {
        for (std::int64_t k = first; k < first + kWidth && k < count; ++k) {
          add(x[k]);
        }
      }
    }
    sum = gpu::block_sum<kBlock>(sum);
    if (threadIdx.x == 0) {
      partial[chunk] = sum;
    }
  }
}

/// One block. partial: (chunks).
__global__ void __launch_bounds__(kBlock) join_squares(const double* partial, std::int64_t chunks, double* result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kBlock) {
    sum += partial[i];
  }
  sum = gpu::block_sum<kBlock>(sum);
  if (threadIdx.x == 0) {
    *result = sum;
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

void squared_norm(CudaContext& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  const std::int64_t count = x.numel();
  const std::int64_t chunks = (count + kSquaredNormChunk - 1) / kSquaredNormChunk;
  auto* partial = static_cast<double*>(workspace.data);
  if (chunks > 0) {
    gpu::visit_element(x.dtype, "squared_norm", [&]<class T>(std::type_identity<T>) {
      const auto* from = static_cast<const T*>(x.data);
      gpu::launch(gpu::aligned_to_vectors(from) ? square_chunks<T, true> : square_chunks<T, false>,
                  dim3(gpu::blocks_for(chunks, 1)), dim3(kBlock), 0, context.stream(), from, count, chunks, partial);
    });
  }
  gpu::launch(join_squares, dim3(1), dim3(kBlock), 0, context.stream(), partial, chunks, result.as<double>());
}

}  // namespace lockstep::ops::backend

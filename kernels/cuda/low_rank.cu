// The ops of low-rank compression of x (m, n) by p (m, r) and q (n, r), where r is small.
// orthonormalise_kernel is one block of 256 threads for x (rows, r). A column depends on the columns before it, and
// each of the about r * r sums over the rows needs the whole block. A thread keeps the same rows, so that threads
// exchange only sums. Latency of barriers and cache accesses bounds this kernel.
// residual_kernel: blocks of 256 threads in a grid-stride loop. A thread takes 16 bytes of a row of x; p and q come
// from the caches. keep_kernel: a thread takes one element at a time.
// residual_kernel moves 8 bytes per element of x (x read, error written) for 2 r f32 operations: memory bandwidth
// bounds the kernel if r is small. keep_kernel moves 8 bytes per element of the columns that are kept.

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/low_rank.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

/// Returns the sum over the rows of x(row, i) * x(row, j), in every thread. x: (rows, r). All threads of the block must
/// call product_of().
__device__ double product_of(const float* x, int64_t rows, int r, int i, int j) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kBlock) {
    sum += static_cast<double>(x[row * r + i]) * static_cast<double>(x[row * r + j]);
  }
  return gpu::block_sum<kBlock>(sum);
}

/// Orthonormalises the columns of x (rows, r), and writes to columns (r) a value of enum Column for each column. Runs
/// as one block. A thread reads and writes only its own rows; threads exchange only sums.
__global__ void orthonormalise_kernel(double epsilon, int64_t rows, int r, float* x, std::int32_t* columns) {
  gpu::wait_for_earlier();
  double strange = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kBlock) {
    for (int j = 0; j < r; ++j) {
      strange += x[row * r + j] - x[row * r + j] == 0 ? 0 : 1;
    }
  }
  const bool finite = gpu::block_sum<kBlock>(strange) == 0;
  for (int j = 0; j < r; ++j) {
    const double before = sqrt(product_of(x, rows, r, j, j));
    for (int turn = 0; turn < 2; ++turn) {  // the second turn removes the components that rounding has left
      for (int i = 0; i < j; ++i) {
        const double along = product_of(x, rows, r, i, j);
        for (int64_t row = threadIdx.x; row < rows; row += kBlock) {
          x[row * r + j] =
              static_cast<float>(static_cast<double>(x[row * r + j]) - along * static_cast<double>(x[row * r + i]));
        }
      }
    }
    const double length = sqrt(product_of(x, rows, r, j, j));
    const bool kept = length > epsilon * before;
    for (int64_t row = threadIdx.x; row < rows; row += kBlock) {
      const float value = kept ? static_cast<float>(static_cast<double>(x[row * r + j]) / length) : 0.0F;
      x[row * r + j] = finite ? value : __int_as_float(0x7fc00000);
    }
    if (threadIdx.x == 0) {
      columns[j] = static_cast<std::int32_t>(!finite ? Column::not_finite : kept ? Column::kept : Column::dropped);
    }
  }
}

/// Computes error = x - p q^T, unless an entry of `columns` is Column::not_finite. x, error: (m, n); p: (m, r); q: (n,
/// r); columns: (r). A piece of kCount elements lies within a row.
template <int kCount>
__global__ void residual_kernel(int64_t m, int64_t n, int r, const float* x, const float* p, const float* q,
                                const std::int32_t* columns, float* error) {
  gpu::wait_for_earlier();
  if (columns[0] == static_cast<std::int32_t>(Column::not_finite)) {
    return;
  }
  const int64_t pieces = m * n / kCount;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t v = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; v < pieces; v += threads) {
    const int64_t row = v * kCount / n;
    const int64_t column = v * kCount % n;
    auto rest = gpu::load<kCount>(x + v * kCount);
    for (int j = 0; j < r; ++j) {
      const float along = p[row * r + j];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        rest.at[k] = fmaf(-along, q[(column + k) * r + j], rest.at[k]);
      }
    }
    gpu::store(error + v * kCount, rest);
  }
}

/// Copies each column whose entry in `columns` is Column::kept. from, to: (n, r); count: n * r; columns: (r).
__global__ void keep_kernel(int64_t count, int r, const float* from, const std::int32_t* columns, float* to) {
  gpu::wait_for_earlier();
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    if (columns[i % r] == static_cast<std::int32_t>(Column::kept)) {
      to[i] = from[i];
    }
  }
}

}  // namespace

void orthonormalise(CudaContext& context, double epsilon, const TensorView& x, const TensorView& columns) {
  gpu::launch(orthonormalise_kernel, dim3(1), dim3(kBlock), 0, context.stream(), epsilon, x.shape[0],
              static_cast<int>(x.shape[1]), gpu::data<float>(x), gpu::data<std::int32_t>(columns));
}

void low_rank_residual(CudaContext& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error) {
  const auto* from = gpu::data<const float>(x);
  auto* to = gpu::data<float>(error);
  const int64_t n = x.shape[1];
  gpu::visit_pieces<float>(gpu::aligned_to_vectors(from, to), n, [&]<int kCount>(std::integral_constant<int, kCount>) {
    gpu::launch(residual_kernel<kCount>, dim3(gpu::blocks_for(x.numel() / kCount, kBlock)), dim3(kBlock), 0,
                context.stream(), x.shape[0], n, static_cast<int>(p.shape[1]), from, gpu::data<const float>(p),
                gpu::data<const float>(q), gpu::data<const std::int32_t>(columns), to);
  });
}

void keep_columns(CudaContext& context, const TensorView& from, const TensorView& columns, const TensorView& to) {
  gpu::launch(keep_kernel, dim3(gpu::blocks_for(from.numel(), kBlock)), dim3(kBlock), 0, context.stream(), from.numel(),
              static_cast<int>(from.shape[1]), gpu::data<const float>(from), gpu::data<const std::int32_t>(columns),
              gpu::data<float>(to));
}

}  // namespace lockstep::ops::backend

// Softmax of the rows of x (M, K) to y (M, K), and its gradient.
//
// A warp takes a row of up to 1024 elements; a block of 256 threads takes 8 such rows, or one longer row (rows.hpp). So
// a row's maximum and sum need shuffles and at most two barriers each. Forward goes over its row three times (maximum,
// sum, y), backward twice. The row comes from memory the first time, then from the first-level cache. exp() is computed
// twice, in the second and third pass, so that a 16-bit y is as exact as its type allows.
//
// Bound by memory bandwidth. Forward reads x and writes y: 8 bytes per element in f32 and 4 in 16 bits (with a causal
// mask it reads half of a square x). Backward reads y and dy and writes dx: 12 and 6 bytes.

#include <lockstep/kernels/cuda/rows.hpp>
#include <lockstep/kernels/softmax.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = gpu::kRowBlock;

/// Computes y from x, both (M, K). Each `queries` rows form a group: the first row of a group sees `first_seen`
/// columns, each next row `step` more. A thread writes elements of y whose x it has read, and zeros in columns that no
/// thread reads. So y may be x.
template <class T, int kThreads, int kCount>
__global__ void __launch_bounds__(kBlock)
    forward_kernel(int64_t rows, int64_t columns, int64_t queries, int64_t first_seen, int64_t step, float scale,
                   const T* x, T* y) {
  gpu::wait_for_earlier();
  constexpr int kRows = kBlock / kThreads;  // number of rows that a block takes at a time
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  const float sign = scale < 0.0F ? -1.0F : 1.0F;
  const float magnitude = fabsf(scale);
  for (int64_t row = first; row < rows; row += static_cast<int64_t>(gridDim.x) * kRows) {
    const T* const from = x + row * columns;
    T* const to = y + row * columns;
    const int64_t seen = first_seen + row % queries * step;
    float largest = -INFINITY;
    gpu::visit_row<kThreads, kCount>(
        seen, lane,
        [&](int64_t k, float value) {
          largest = k < seen && sign * value > largest ? sign * value : largest;  // skips a NaN, which makes total NaN
        },
        from);
    largest = gpu::row_max<kThreads>(largest);
    // The largest value is subtracted before the multiplication, because a product is rounded. So the exponent of the
    // largest element is exactly 0.
    const auto power = [=](int64_t k, float value) {
      return k < seen ? expf(magnitude * fmaf(sign, value, -largest)) : 0.0F;
    };
    float total = 0.0F;
    gpu::visit_row<kThreads, kCount>(
        seen, lane, [&](int64_t k, float value) { total += power(k, value); }, from);
    const float inverse = 1.0F / gpu::row_sum<kThreads>(total);
    gpu::transform_row<kThreads, kCount>(
        seen, lane, [=](int64_t k, float value) { return k < seen ? power(k, value) * inverse : 0.0F; }, to, from);
    const int64_t pieces_seen = (seen + kCount - 1) / kCount;
    for (int64_t k = (pieces_seen + lane) * kCount; k < columns; k += kThreads * kCount) {
      gpu::Pack<T, kCount> zeros;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        zeros.at[j] = gpu::from_float<T>(0.0F);
      }
      gpu::store(to + k, zeros);
    }
  }
}

/// Computes dx from y and dy, all (M, K). dx may be dy or y.
template <class T, int kThreads, int kCount>
__global__ void __launch_bounds__(kBlock)
    backward_kernel(int64_t rows, int64_t columns, float scale, const T* y, const T* dy, T* dx) {
  gpu::wait_for_earlier();
  constexpr int kRows = kBlock / kThreads;
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  for (int64_t row = first; row < rows; row += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t at = row * columns;
    float sum = 0.0F;
    gpu::visit_row<kThreads, kCount>(
        columns, lane, [&](int64_t, float p, float g) { sum = p == 0.0F ? sum : fmaf(p, g, sum); }, y + at, dy + at);
    sum = gpu::row_sum<kThreads>(sum);
    gpu::transform_row<kThreads, kCount>(
        columns, lane, [=](int64_t, float p, float g) { return p == 0.0F ? 0.0F : scale * p * (g - sum); }, dx + at,
        y + at, dy + at);
  }
}

}  // namespace

void softmax_forward(CudaContext& context, const TensorView& x, double scale, SoftmaxMask mask, const TensorView& y) {
  if (x.numel() == 0) {
    return;
  }
  const int64_t columns = x.shape.back();
  const int64_t rows = x.numel() / columns;
  const bool causal = mask == SoftmaxMask::causal;
  const int64_t queries = causal ? x.shape[x.shape.rank() - 2] : 1;
  gpu::visit_element(x.dtype, "softmax_forward", [&]<class T>(std::type_identity<T>) {
    const auto* const from = gpu::data<const T>(x);
    auto* const to = gpu::data<T>(y);
    gpu::visit_pieces<T>(
        gpu::aligned_to_vectors(from, to), columns, [&]<int kCount>(std::integral_constant<int, kCount>) {
          gpu::visit_row_threads(columns, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
            gpu::launch(forward_kernel<T, kThreads, kCount>, dim3(gpu::blocks_for(rows, kBlock / kThreads)),
                        dim3(kBlock), 0, context.stream(), rows, columns, queries, columns - queries + 1,
                        causal ? 1 : 0, static_cast<float>(scale), from, to);
          });
        });
  });
}

void softmax_backward(CudaContext& context, const TensorView& y, const TensorView& dy, double scale,
                      const TensorView& dx) {
  if (y.numel() == 0) {
    return;
  }
  const int64_t columns = y.shape.back();
  const int64_t rows = y.numel() / columns;
  gpu::visit_element(y.dtype, "softmax_backward", [&]<class T>(std::type_identity<T>) {
    const auto* const probabilities = gpu::data<const T>(y);
    const auto* const gradient = gpu::data<const T>(dy);
    auto* const to = gpu::data<T>(dx);
    gpu::visit_pieces<T>(gpu::aligned_to_vectors(probabilities, gradient, to), columns,
                         [&]<int kCount>(std::integral_constant<int, kCount>) {
                           gpu::visit_row_threads(columns, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
                             gpu::launch(backward_kernel<T, kThreads, kCount>,
                                         dim3(gpu::blocks_for(rows, kBlock / kThreads)), dim3(kBlock), 0,
                                         context.stream(), rows, columns, static_cast<float>(scale), probabilities,
                                         gradient, to);
                           });
                         });
  });
}

}  // namespace lockstep::ops::backend

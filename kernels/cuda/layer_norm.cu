// Layer norm of the rows of x (M, C), with weight and bias (C) and statistics mean, inv_std (M).
// A row of up to 1024 elements is taken by one warp, and a block of 256 threads takes 8 such rows at a time. A longer
// row is taken by a whole block (rows.hpp). So the sums of a row need shuffles and at most two barriers. Forward goes
// over its row three times (mean, deviations, y), so that the variance is computed from deviations without holding the
// row in registers. The second and third time the row comes from the first-level cache. Backward takes two kernels: one
// computes dx row by row, the other computes dweight and dbias column by column (column_sums.hpp).
// Memory bandwidth bounds the kernels. Bytes per element in f32 and, in parentheses, in 16 bits: forward reads x and
// writes y, 8 (4); the kernel of dx reads dy and x and writes dx, 12 (6); the kernel of dweight and dbias reads dy and
// x, 8 (4).

#include <lockstep/kernels/cuda/column_sums.hpp>
#include <lockstep/kernels/cuda/rows.hpp>
#include <lockstep/kernels/layer_norm.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = gpu::kRowBlock;

/// Computes y, mean and inv_std. x, y: (M, C); weight, bias: (C); mean, inv_std: (M), or null if they are not wanted. A
/// thread reads exactly the elements of x that it writes to y: y may be x.
template <class T, int kThreads, int kCount>
__global__ void forward_kernel(int64_t rows, int64_t channels, float epsilon, const T* x, const float* weight,
                               const float* bias, T* y, float* mean, float* inv_std) {
  gpu::wait_for_earlier();
  constexpr int kRows = kBlock / kThreads;  // number of rows that a block takes at a time
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  const float inv_channels = 1.0F / static_cast<float>(channels);
  for (int64_t row = first; row < rows; row += static_cast<int64_t>(gridDim.x) * kRows) {
    const T* const from = x + row * channels;
    float sum = 0.0F;
    for (int64_t c = lane * kCount; c < channels; c += kThreads * kCount) {
      const auto values = gpu::load<kCount>(from + c);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sum += gpu::to_float(values.at[j]);
      }
    }
    const float m = gpu::row_sum<kThreads>(sum) * inv_channels;
    float squares = 0.0F;
    for (int64_t c = lane * kCount; c < channels; c += kThreads * kCount) {
      const auto values = gpu::load<kCount>(from + c);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float deviation = gpu::to_float(values.at[j]) - m;
        squares = fmaf(deviation, deviation, squares);
      }
    }
    const float s = 1.0F / sqrtf(fmaf(gpu::row_sum<kThreads>(squares), inv_channels, epsilon));
    for (int64_t c = lane * kCount; c < channels; c += kThreads * kCount) {
      auto values = gpu::load<kCount>(from + c);
      const auto w = gpu::load<kCount>(weight + c);
      const auto b = gpu::load<kCount>(bias + c);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values.at[j] = gpu::from_float<T>(fmaf((gpu::to_float(values.at[j]) - m) * s, w.at[j], b.at[j]));
      }
      gpu::store(y + row * channels + c, values);
    }
    if (mean != nullptr && lane == 0) {
      mean[row] = m;
      inv_std[row] = s;
    }
  }
}

/// Computes dx. dy, x, dx: (M, C); weight: (C); mean, inv_std: (M). A thread reads exactly the elements of dy that it
/// writes to dx: dx may be dy.
template <class T, int kThreads, int kCount>
__global__ void backward_kernel(int64_t rows, int64_t channels, const T* dy, const T* x, const float* weight,
                                const float* mean, const float* inv_std, T* dx) {
  gpu::wait_for_earlier();
  constexpr int kRows = kBlock / kThreads;
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  const float inv_channels = 1.0F / static_cast<float>(channels);
  for (int64_t row = first; row < rows; row += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t at = row * channels;
    const float m = mean[row];
    const float s = inv_std[row];
    float sum = 0.0F;         // sum of g = dy * weight
    float projection = 0.0F;  // sum of g * xhat
    for (int64_t c = lane * kCount; c < channels; c += kThreads * kCount) {
      const auto gradient = gpu::load<kCount>(dy + at + c);
      const auto values = gpu::load<kCount>(x + at + c);
      const auto w = gpu::load<kCount>(weight + c);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float g = gpu::to_float(gradient.at[j]) * w.at[j];
        sum += g;
        projection = fmaf(g, (gpu::to_float(values.at[j]) - m) * s, projection);
      }
    }
    const float mean_sum = gpu::row_sum<kThreads>(sum) * inv_channels;
    const float mean_projection = gpu::row_sum<kThreads>(projection) * inv_channels;
    for (int64_t c = lane * kCount; c < channels; c += kThreads * kCount) {
      auto gradient = gpu::load<kCount>(dy + at + c);
      const auto values = gpu::load<kCount>(x + at + c);
      const auto w = gpu::load<kCount>(weight + c);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float g = gpu::to_float(gradient.at[j]) * w.at[j];
        const float xhat = (gpu::to_float(values.at[j]) - m) * s;
        gradient.at[j] = gpu::from_float<T>(s * (g - fmaf(xhat, mean_projection, mean_sum)));
      }
      gpu::store(dx + at + c, gradient);
    }
  }
}

/// A function for gpu::column_sums that sums dy * xhat and dy per channel. dy, x: (M, C); mean, inv_std: (M).
template <class T, int kCount>
struct Parameters {
  int64_t channels;
  const T* dy;
  const T* x;
  const float* mean;
  const float* inv_std;

  __device__ Parameters at(int64_t channel) const { return {channels, dy + channel, x + channel, mean, inv_std}; }

  __device__ void operator()(int64_t row, float (&sums)[2][kCount]) const {
    const auto gradient = gpu::load<kCount>(dy + row * channels);
    const auto values = gpu::load<kCount>(x + row * channels);
    const float m = mean[row];
    const float s = inv_std[row];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float g = gpu::to_float(gradient.at[j]);
      sums[0][j] = fmaf(g, (gpu::to_float(values.at[j]) - m) * s, sums[0][j]);
      sums[1][j] += g;
    }
  }
};

}  // namespace

void layer_norm_forward(CudaContext& context, const TensorView& x, const TensorView& weight, const TensorView& bias,
                        double epsilon, const TensorView& y, const TensorView& mean, const TensorView& inv_std) {
  if (x.numel() == 0) {
    return;
  }
  const int64_t channels = x.shape.back();
  const int64_t rows = x.numel() / channels;
  gpu::visit_element(x.dtype, "layer_norm_forward", [&]<class T>(std::type_identity<T>) {
    const bool aligned =
        gpu::aligned_to_vectors(gpu::data<T>(x), gpu::data<T>(y), gpu::data<float>(weight), gpu::data<float>(bias));
    gpu::visit_pieces<T>(aligned, channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      gpu::visit_row_threads(channels, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
        gpu::launch(forward_kernel<T, kThreads, kCount>, dim3(gpu::blocks_for(rows, kBlock / kThreads)), dim3(kBlock),
                    0, context.stream(), rows, channels, static_cast<float>(epsilon), gpu::data<T>(x),
                    gpu::data<float>(weight), gpu::data<float>(bias), gpu::data<T>(y), gpu::data<float>(mean),
                    gpu::data<float>(inv_std));
      });
    });
  });
}

std::size_t layer_norm_workspace_bytes(const CudaContext& /*context*/, const TensorView& x) {
  return gpu::column_sums_bytes(x.numel() / x.shape.back(), x.shape.back(), 2);
}

void layer_norm_backward(CudaContext& context, const TensorView& dy, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& inv_std, GradMode mode, const TensorView& dx,
                         const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  const int64_t channels = x.shape.back();
  const int64_t rows = x.numel() / channels;
  gpu::visit_element(x.dtype, "layer_norm_backward", [&]<class T>(std::type_identity<T>) {
    const bool aligned =
        gpu::aligned_to_vectors(gpu::data<T>(dy), gpu::data<T>(x), gpu::data<T>(dx), gpu::data<float>(weight));
    gpu::visit_pieces<T>(aligned, channels, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const auto* const m = gpu::data<const float>(mean);
      const auto* const s = gpu::data<const float>(inv_std);
      if (mode != GradMode::ignore) {
        gpu::column_sums<2, kCount>(context, Parameters<T, kCount>{channels, gpu::data<T>(dy), gpu::data<T>(x), m, s},
                                    rows, channels, mode == GradMode::accumulate, gpu::data<float>(workspace),
                                    gpu::ColumnSums<2>{{gpu::data<float>(dweight), gpu::data<float>(dbias)}});
      }
      if (dx.given() && rows > 0) {  // computed last, because dx may be dy, which the sums read
        gpu::visit_row_threads(channels, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
          gpu::launch(backward_kernel<T, kThreads, kCount>, dim3(gpu::blocks_for(rows, kBlock / kThreads)),
                      dim3(kBlock), 0, context.stream(), rows, channels, gpu::data<T>(dy), gpu::data<T>(x),
                      gpu::data<float>(weight), m, s, gpu::data<T>(dx));
        });
      }
    });
  });
}

}  // namespace lockstep::ops::backend

// Sums the weights (N, F) f32 of the valid samples, divides the sum by F, and writes the result to scalars on the
// device. Weights of padding samples are not read.
//
// chunk_sum.hpp divides the weights: a block of 256 threads takes chunks of 16384 weights, a thread 16 bytes at a time,
// and sums in f64. join_weights_kernel, one block, joins the chunks in order and applies scale. Fixed chunks instead of
// atomic additions give the same bits in every run.
//
// Bound by memory bandwidth: 4 bytes read per weight, 16 bytes of partial sums per 16384 weights. With few weights the
// two launches bound the op.

#include <lockstep/kernels/cuda/chunk_sum.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/weight_sum.hpp>

namespace lockstep::ops::backend {
namespace {

/// The term for partial_sums(): adds the weights of the valid samples. weights: (N, F); valid: scalar or null.
struct Weights {
  const float* weights;
  const std::int64_t* valid;
  std::int64_t samples;
  std::int64_t features;
  std::int64_t counted = 0;  ///< only the first `counted` weights are summed

  static constexpr int kUnroll = 4;

  __device__ void start() {
    const std::int64_t rows = valid == nullptr || *valid > samples ? samples : *valid;
    counted = rows < 0 ? 0 : rows * features;
  }

  template <int kCount>
  __device__ void operator()(std::integral_constant<int, kCount>, std::int64_t first, double& sum) const {
    if (first < counted) {
      const auto values = gpu::load<kCount>(weights + first);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sum += first + j < counted ? static_cast<double>(values.at[j]) : 0.0;
      }
    }
  }
};

/// Computes S = (sum of partial) / features. Sets `sum` to scale * S, or with `accumulate` adds scale * S to `sum`.
/// Adds S to `total`. Runs as one block. partial: (chunks); sum, total, scale: scalars or null.
__global__ void __launch_bounds__(gpu::kSumBlock)
    join_weights_kernel(const double* partial, std::int64_t chunks, double features, const float* scale,
                        bool accumulate, float* sum, double* total) {
  gpu::wait_for_earlier();
  const double all = gpu::joined_sum<gpu::kSumBlock>(partial, chunks) / features;
  if (threadIdx.x == 0) {
    if (total != nullptr) {
      *total += all;
    }
    if (sum != nullptr) {
      const auto scaled = static_cast<float>(all * (scale != nullptr ? static_cast<double>(*scale) : 1.0));
      *sum = accumulate ? *sum + scaled : scaled;
    }
  }
}

}  // namespace

void weight_sum(CudaContext& context, const TensorView& weights, const TensorView& valid, const TensorView& scale,
                GradMode mode, const TensorView& sum, const TensorView& total, const TensorView& workspace) {
  const std::int64_t samples = weights.shape[0];
  const std::int64_t features = samples == 0 ? 1 : weights.numel() / samples;
  const Weights term{gpu::data<const float>(weights), gpu::data<const std::int64_t>(valid), samples, features};
  auto* partial = gpu::data<double>(workspace);
  const std::int64_t chunks = gpu::partial_sums<kSumChunk, float>(context, term, samples * features,
                                                                  gpu::aligned_to_vectors(term.weights), partial);
  gpu::launch(join_weights_kernel, dim3(1), dim3(gpu::kSumBlock), 0, context.stream(), partial, chunks,
              static_cast<double>(features), gpu::data<const float>(scale), mode == GradMode::accumulate,
              gpu::data<float>(sum), gpu::data<double>(total));
}

}  // namespace lockstep::ops::backend

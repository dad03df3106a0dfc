// Sets found (N) u8 from logits (N, K) and labels (N), then sums the weights of the samples for which found is 1.
//
// rank_kernel does not sort, but counts the logits that rank above the label's logit: one pass, with one counter per
// thread. A block of 128 threads takes a row, and a thread takes 16 bytes at a time. (A row of 1000 classes in 16 bits
// has 125 such pieces.) Shuffles and shared memory join the block's counts. count_kernel, one block of 256 threads,
// sums over the samples in a fixed order.
//
// Memory bandwidth bounds rank_kernel: each logit is read once, 4 bytes in f32 and 2 in 16 bits. count_kernel reads 1
// byte per sample (5 with weights); the latency of the launch bounds it.

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/top_k.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 128;  // number of threads for a row: a row of 1000 classes in 16 bits has 125 pieces of 16 bytes
constexpr int kJoinBlock = 256;

/// Sets found[n] to 1 if fewer than `k` logits of row n rank above the label's logit, otherwise to 0. A block takes a
/// row. A row may start at any address, because some language models have odd numbers of classes. So the block takes
/// single elements up to a 16-byte boundary, then whole 16-byte pieces, then single elements again. logits: (N, K),
/// labels, found: (N), valid: scalar or null.
template <class T>
__global__ void __launch_bounds__(kBlock)
    rank_kernel(const T* logits, const std::int32_t* labels, const std::int64_t* valid, std::int64_t samples,
                std::int64_t classes, int k, std::uint8_t* found) {
  gpu::wait_for_earlier();
  constexpr int kWidth = gpu::kPerVector<T>;
  const std::int64_t counting = valid != nullptr ? *valid : samples;
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t row = blockIdx.x; row < samples; row += gridDim.x) {
    const std::int32_t label = labels[row];
    const bool takes_part = row < counting && label >= 0 && label < classes;
    double above = 0;
    if (takes_part) {
      const T* const x = logits + row * classes;
      const float at_label = gpu::to_float(x[label]);
      const auto ahead = [=](std::int64_t c,
                             T logit) -> std::int64_t {  // returns K for NaN or +inf, so that found becomes 0
        const float value = gpu::to_float(logit);
        if (!(value < INFINITY)) {
          return classes;
        }
        return (c < label ? !(value < at_label) : !(value <= at_label)) ? 1 : 0;
      };
      const auto to_boundary =
          static_cast<std::int64_t>((16 - reinterpret_cast<std::uintptr_t>(x) % 16) % 16 / sizeof(T));
      const std::int64_t head = to_boundary < classes ? to_boundary : classes;
      const std::int64_t vectors = (classes - head) / kWidth;
      const std::int64_t tail = head + vectors * kWidth;
      std::int64_t count = thread == 0 && at_label == -INFINITY ? classes : 0;
      if (thread < head) {
        count += ahead(thread, x[thread]);
      }
#pragma unroll 4
      for (std::int64_t v = thread; v < vectors; v += kBlock) {
        const gpu::Vector<T> values = gpu::load_vector(x + head + v * kWidth);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          count += ahead(head + v * kWidth + j, values.at[j]);
        }
      }
      if (tail + thread < classes) {
        count += ahead(tail + thread, x[tail + thread]);
      }
      above = static_cast<double>(count);
    }
    above = gpu::block_sum<kBlock>(above);
    if (thread == 0) {
      found[row] = takes_part && above < k ? 1 : 0;
    }
  }
}

/// Adds the weights of all samples n with found[n] = 1 to `result`. Only one block runs, so there are no partial
/// results to join. found: (N); weights: (N) or null (each weight is 1); result: scalar.
__global__ void __launch_bounds__(kJoinBlock)
    count_kernel(const std::uint8_t* found, const float* weights, std::int64_t samples, double* result) {
  gpu::wait_for_earlier();
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < samples; i += kJoinBlock) {
    if (found[i] != 0) {
      sum += weights != nullptr ? static_cast<double>(weights[i]) : 1.0;
    }
  }
  sum = gpu::block_sum<kJoinBlock>(sum);
  if (threadIdx.x == 0) {
    *result += sum;
  }
}

}  // namespace

void top_k_correct(CudaContext& context, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                   const TensorView& valid, int k, const TensorView& result, const TensorView& workspace) {
  const std::int64_t samples = logits.shape[0];
  if (samples == 0) {
    return;
  }
  auto* found = gpu::data<std::uint8_t>(workspace);
  gpu::visit_element(logits.dtype, "top_k_correct", [&]<class T>(std::type_identity<T>) {
    gpu::launch(rank_kernel<T>, dim3(gpu::blocks_for(samples, 1)), dim3(kBlock), 0, context.stream(),
                gpu::data<T>(logits), gpu::data<std::int32_t>(labels), gpu::data<std::int64_t>(valid), samples,
                logits.shape[1], k, found);
  });
  gpu::launch(count_kernel, dim3(1), dim3(kJoinBlock), 0, context.stream(), found, gpu::data<float>(weights), samples,
              gpu::data<double>(result));
}

}  // namespace lockstep::ops::backend

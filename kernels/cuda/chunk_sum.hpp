#pragma once

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Sums over long contiguous tensors of (count) elements. A block of 256 threads sums one chunk of kChunk elements in
/// f64 and writes one number; then one block joins these numbers in order. Two launches avoid atomic additions, whose
/// order changes from run to run. The chunks and the order of the sum in a chunk are the same with and without 16-byte
/// accesses. Memory bandwidth bounds the kernels: each element is read once, and 8 bytes are written and read per
/// chunk.
namespace lockstep::gpu {

inline constexpr int kSumBlock = 256;

/// Returns a thread's part of the sum of `term` over the elements [begin, begin + kChunk) that are below `count`. The
/// thread calls term(std::integral_constant<int, kN>{}, first, sum), which adds kN elements from `first` on to `sum`.
/// If `vectors` is true, kN is kWidth except at the end of the tensor; the caller must ensure that these accesses are
/// aligned. Otherwise kN is 1. The loads of Term::kUnroll calls are issued together.
template <std::int64_t kChunk, int kWidth, class Term>
__device__ double thread_sum(const Term& term, std::int64_t begin, std::int64_t count, bool vectors) {
  constexpr int kPieces = static_cast<int>(kChunk) / (kSumBlock * kWidth);
  static_assert(kPieces * kSumBlock * kWidth == kChunk);
  double sum = 0;
#pragma unroll Term::kUnroll
  for (int i = 0; i < kPieces; ++i) {
    const std::int64_t first = begin + (i * kSumBlock + static_cast<int>(threadIdx.x)) * std::int64_t{kWidth};
    if (vectors && first + kWidth <= count) {
      term(std::integral_constant<int, kWidth>{}, first, sum);
    } else {
      for (std::int64_t k = first; k < first + kWidth && k < count; ++k) {
        term(std::integral_constant<int, 1>{}, k, sum);
      }
    }
  }
  return sum;
}

/// A term that adds up the elements of x (count), or with kSquare their squares, in f64.
template <class T, bool kSquare>
struct SumTerm {
  const T* x;

  static constexpr int kUnroll = 4;

  __device__ void start() {}

  template <int kCount>
  __device__ void operator()(std::integral_constant<int, kCount>, std::int64_t first, double& sum) const {
    const auto values = load<kCount>(x + first);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const auto value = static_cast<double>(to_float(values.at[j]));
      sum = kSquare ? fma(value, value, sum) : sum + value;
    }
  }
};

/// Sets partial[chunk] to the sum of `term` over each chunk of kChunk elements; partial: (chunks). Calls term.start()
/// first. A block takes one chunk at a time.
template <std::int64_t kChunk, int kWidth, bool kVectors, class Term>
__global__ void __launch_bounds__(kSumBlock)
    chunk_sums_kernel(Term term, std::int64_t count, std::int64_t chunks, double* partial) {
  gpu::wait_for_earlier();
  term.start();
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const double sum = block_sum<kSumBlock>(thread_sum<kChunk, kWidth>(term, chunk * kChunk, count, kVectors));
    if (threadIdx.x == 0) {
      partial[chunk] = sum;
    }
  }
}

/// Returns the sum of partial (chunks) in every thread of a block of kThreads threads. Each thread sums every
/// kThreads-th number; then the sums of the threads are joined in order.
template <int kThreads>
__device__ double joined_sum(const double* partial, std::int64_t chunks) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kThreads) {
    sum += partial[i];
  }
  return block_sum<kThreads>(sum);
}

/// Sets result to the sum of partial (chunks), divided by `divisor`; with `add` adds this quotient to result. Runs in
/// one block.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    join_sums_kernel(const double* partial, std::int64_t chunks, double divisor, bool add, double* result) {
  gpu::wait_for_earlier();
  const double sum = joined_sum<kThreads>(partial, chunks) / divisor;
  if (threadIdx.x == 0) {
    *result = (add ? *result : 0.0) + sum;
  }
}

/// Enqueues the sums of `term` over the chunks of `count` elements of T, and writes them to partial (chunks). Returns
/// the number of chunks.
template <std::int64_t kChunk, class T, class Term>
std::int64_t partial_sums(CudaContext& context, const Term& term, std::int64_t count, bool aligned, double* partial) {
  constexpr int kWidth = kPerVector<T>;
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  if (chunks > 0) {
    launch(aligned ? chunk_sums_kernel<kChunk, kWidth, true, Term> : chunk_sums_kernel<kChunk, kWidth, false, Term>,
           dim3(blocks_for(chunks, 1)), dim3(kSumBlock), 0, context.stream(), term, count, chunks, partial);
  }
  return chunks;
}

/// Enqueues the sum of `term` over `count` elements of T, divided by `divisor`. Sets result to this quotient, or with
/// `add` adds the quotient to result. partial: (chunks); result: scalar.
template <std::int64_t kChunk, class T, class Term>
void chunk_sum(CudaContext& context, const Term& term, std::int64_t count, bool aligned, double* partial,
               double divisor, bool add, double* result) {
  const std::int64_t chunks = partial_sums<kChunk, T>(context, term, count, aligned, partial);
  launch(join_sums_kernel<kSumBlock>, dim3(1), dim3(kSumBlock), 0, context.stream(), partial, chunks, divisor, add,
         result);
}

}  // namespace lockstep::gpu

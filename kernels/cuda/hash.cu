// Computes a hash of x (bytes), one 64-bit number: the sum over the 64-bit words of x, each mixed with its position by
// SplitMix64.
// start_kernel, one thread, writes the first term; sum_kernel adds the other terms. Blocks of 256 threads in a
// grid-stride loop. A thread takes 16 bytes at a time, two words, and keeps its sum in a register. Warp shuffles and
// shared memory join the sums of a block; then the block adds its sum to the result atomically. Integer sums do not
// depend on the order, so no second launch has to join partial sums.
// Memory bandwidth bounds the kernel: each byte is read once, one number is written. Each word takes three 64-bit
// multiplications.

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/hash.hpp>

namespace lockstep::ops::backend {
namespace {

using Word = unsigned long long;  // CUDA's 64-bit atomicAdd takes this type

constexpr int kBlock = 256;
constexpr int kWordBytes = 8;
constexpr int kVectorBytes = 16;

/// Returns number `index` of the sequence that SplitMix64 generates from `seed`.
__device__ Word split_mix(Word seed, int64_t index) {
  Word z = seed + static_cast<Word>(index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  return z ^ z >> 31;
}

/// Sets the result, a scalar, to its first term, to which sum_kernel adds. Runs in one thread.
__global__ void start_kernel(int64_t bytes, Word* result) {
  gpu::wait_for_earlier();
  *result = split_mix(static_cast<Word>(bytes), 0);
}

/// Adds the terms of x (bytes) to the result, a scalar. A thread first takes its share of the `vectors` aligned pieces
/// of 16 bytes at the beginning of x. Then it takes words byte by byte: the words after these pieces, or all words if x
/// is not aligned. The blocks join their sums by an atomic addition: for integers the order makes no difference.
__global__ void __launch_bounds__(kBlock)
    sum_kernel(int64_t bytes, int64_t vectors, const unsigned char* x, Word* result) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  Word sum = 0;
  for (int64_t v = thread; v < vectors; v += threads) {
    const uint4 bits = reinterpret_cast<const uint4*>(x)[v];
    sum += split_mix(static_cast<Word>(bits.y) << 32 | bits.x, 2 * v);
    sum += split_mix(static_cast<Word>(bits.w) << 32 | bits.z, 2 * v + 1);
  }
  for (int64_t i = 2 * vectors + thread; i * kWordBytes < bytes; i += threads) {
    Word word = 0;
    for (int64_t b = i * kWordBytes; b < bytes && b < (i + 1) * kWordBytes; ++b) {
      word |= static_cast<Word>(x[b]) << 8 * (b % kWordBytes);
    }
    sum += split_mix(word, i);
  }
  sum = gpu::block_sum<kBlock>(sum);
  if (threadIdx.x == 0) {
    atomicAdd(result, sum);
  }
}

}  // namespace

void hash_range(CudaContext& context, const TensorView& x, const TensorView& result) {
  const auto bytes = static_cast<int64_t>(x.bytes());
  const auto* const from = gpu::data<const unsigned char>(x);
  auto* const to = gpu::data<Word>(result);
  gpu::launch(start_kernel, dim3(1), dim3(1), 0, context.stream(), bytes, to);
  if (bytes == 0) {
    return;
  }
  const int64_t vectors = gpu::aligned_to_vectors(from) ? bytes / kVectorBytes : 0;
  const int64_t rest = (bytes - vectors * kVectorBytes + kWordBytes - 1) / kWordBytes;
  gpu::launch(sum_kernel, dim3(gpu::blocks_for(vectors > rest ? vectors : rest, kBlock)), dim3(kBlock), 0,
              context.stream(), bytes, vectors, from, to);
}

}  // namespace lockstep::ops::backend

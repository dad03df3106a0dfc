// Computes y = x * factor where an element is kept, and y = 0 where it is dropped. x, y: (N, extent) in f32, bf16 or
// f16; the sample ids (N) and the epoch decide which elements are kept.
//
// Blocks of 256 threads in a grid-stride loop. A thread takes 16 bytes of one sample: 4 or 8 elements, which need one
// or two Philox blocks of four random words. So no word is drawn twice. No mask is stored or read: backward draws the
// same words again. Registers only, no shared memory.
//
// Memory bandwidth bounds the kernel: per element it moves 8 bytes in f32 and 4 in 16 bits. For 16-bit tensors, the ten
// Philox rounds per four elements take about as long as the memory accesses. So a thread computes its Philox key only
// once.

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/philox.hpp>
#include <lockstep/kernels/dropout.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kQuad = 4;  // number of elements that one Philox block (four random words) keeps or drops

/// Settings of a call, which are the same for all elements.
struct Settings {
  std::uint64_t seed;
  std::uint32_t layer;
  std::uint32_t threshold;  ///< an element is dropped if its random word is below the threshold
  float factor;             ///< 1 / (1 - rate)
};

/// A thread takes a piece of one sample at a time. A piece is 16 bytes of elements, which need one or two Philox blocks
/// of four random words. With kCount 1 a piece is the four elements of one Philox block, which are taken one by one.
/// Threads take pieces as in a grid-stride loop. Two counters, for the sample and for the piece in the sample, replace
/// all divisions but the first. ids: (N); epoch: scalar; x, y: (N, extent), with `pieces` pieces per sample. y may be
/// x.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock)
    dropout_kernel(Settings settings, int64_t samples, int64_t extent, int64_t pieces, int64_t sample_stride,
                   int64_t piece_stride, const int64_t* ids, const int64_t* epoch, const T* x, T* y) {
  gpu::wait_for_earlier();
  constexpr int kPiece = kCount == 1 ? kQuad : kCount;
  const uint2 key =
      gpu::random_key(settings.seed, RandomUse::dropout, static_cast<std::uint64_t>(*epoch), settings.layer);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  int64_t sample = thread / pieces;
  int64_t piece = thread % pieces;
  while (sample < samples) {
    const auto id = static_cast<std::uint64_t>(ids[sample]);
    const int64_t first = piece * kPiece;
    const int64_t at = sample * extent + first;
    const auto words_of = [&](int quad) {
      const auto block = static_cast<std::uint64_t>(first / kQuad + quad);
      return gpu::philox(make_uint4(gpu::low_word(block), gpu::high_word(block), gpu::low_word(id), gpu::high_word(id)),
                         key);
    };
    const auto dropped_or_scaled = [&](std::uint32_t word, T value) {
      return gpu::from_float<T>(word < settings.threshold ? 0.0F : gpu::to_float(value) * settings.factor);
    };
    if constexpr (kCount == 1) {
      const uint4 words = words_of(0);
      const std::uint32_t word[kQuad] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        if (first + j < extent) {
          y[at + j] = dropped_or_scaled(word[j], x[at + j]);
        }
      }
    } else {
      auto values = gpu::load<kCount>(x + at);
#pragma unroll
      for (int quad = 0; quad < kCount / kQuad; ++quad) {
        const uint4 words = words_of(quad);
        const std::uint32_t word[kQuad] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          values.at[quad * kQuad + j] = dropped_or_scaled(word[j], values.at[quad * kQuad + j]);
        }
      }
      gpu::store(y + at, values);
    }
    sample += sample_stride;
    piece += piece_stride;
    if (piece >= pieces) {
      piece -= pieces;
      ++sample;
    }
  }
}

}  // namespace

void dropout(CudaContext& context, const DropoutDesc& desc, const TensorView& sample_ids, const TensorView& epoch,
             const TensorView& x, const TensorView& y) {
  if (x.numel() == 0) {
    return;
  }
  const int64_t samples = x.shape[0];
  const int64_t extent = x.numel() / samples;
  const Settings settings{desc.seed, desc.layer, dropout_threshold(desc.rate), static_cast<float>(1 / (1 - desc.rate))};
  gpu::visit_element(x.dtype, "dropout", [&]<class T>(std::type_identity<T>) {
    const auto* const from = gpu::data<const T>(x);
    auto* const to = gpu::data<T>(y);
    gpu::visit_pieces<T>(gpu::aligned_to_vectors(from, to), extent,
                         [&]<int kCount>(std::integral_constant<int, kCount>) {
                           constexpr int kPiece = kCount == 1 ? kQuad : kCount;
                           const int64_t pieces = (extent + kPiece - 1) / kPiece;
                           const unsigned blocks = gpu::blocks_for(samples * pieces, kBlock);
                           const int64_t threads = static_cast<int64_t>(blocks) * kBlock;
                           gpu::launch(dropout_kernel<T, kCount>, dim3(blocks), dim3(kBlock), 0, context.stream(),
                                       settings, samples, extent, pieces, threads / pieces, threads % pieces,
                                       gpu::data<const int64_t>(sample_ids), gpu::data<const int64_t>(epoch), from, to);
                         });
  });
}

}  // namespace lockstep::ops::backend

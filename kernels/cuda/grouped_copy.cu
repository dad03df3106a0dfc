// Copies up to 80 pairs of contiguous tensors per launch, byte by byte, of any types and shapes.
// The list of pairs is a kernel parameter. All tensors are cut into chunks of 16 KB. A block of 256 threads takes
// chunks in a grid-stride loop, so that blocks have equal work for large and small tensors. A thread copies four
// 16-byte pieces of a chunk, and issues all four loads before its first store. Tensors that do not allow 16-byte
// accesses are copied in elements of 8, 4, 2 or 1 bytes.
// The latency of launches bounds small tensors: one launch replaces up to 80. Memory bandwidth bounds large tensors:
// each byte is read once and written once.

#include <algorithm>

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/grouped_copy.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int64_t kChunk = 16384;  // number of bytes that a block takes at a time: four 16-byte pieces per thread
constexpr int kMostPairs = 80;

/// One pair of tensors: `bytes` bytes are copied from `src` to `dst`, in chunks.
struct Part {
  const std::uint8_t* src;
  std::uint8_t* dst;
  int64_t bytes;
  int64_t first_chunk;  ///< index of this pair's first chunk among all chunks of the table
  int width;            ///< bytes per access: 16, or a divisor (at most 8) of both addresses and of `bytes`
};

/// The pairs that one launch copies. The table is a kernel parameter: it reaches the GPU with the launch, and needs no
/// copy and no device memory.
struct Table {
  Part parts[kMostPairs];
  int64_t chunks;
  int count;
};
static_assert(sizeof(Table) <= 4000, "kernel parameters of 4096 bytes in all are allowed everywhere");

/// Copies a chunk of `bytes` bytes from `src` to `dst`, in pieces of kCount elements of T: 1 element, or 16 bytes.
template <class T, int kCount>
__device__ void copy_chunk(const std::uint8_t* src, std::uint8_t* dst, int bytes) {
  const T* const from = reinterpret_cast<const T*>(src);
  T* const to = reinterpret_cast<T*>(dst);
  constexpr int kPiece = static_cast<int>(sizeof(T)) * kCount;
  const int whole = bytes / kPiece;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kCount > 1) {
    constexpr int kEach = static_cast<int>(kChunk) / kPiece / kBlock;
    if (bytes == kChunk) {  // a thread issues all its loads before its first store
      gpu::Pack<T, kCount> pieces[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        pieces[j] = gpu::load<kCount>(from + (j * kBlock + thread) * kCount);
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        gpu::store(to + (j * kBlock + thread) * kCount, pieces[j]);
      }
      return;
    }
    for (int i = whole * kPiece + thread; i < bytes; i += kBlock) {  // copies the bytes after the last whole piece
      dst[i] = src[i];
    }
  }
#pragma unroll 1  // unrolling the loops of five widths would spill registers
  for (int i = thread; i < whole; i += kBlock) {
    gpu::store(to + i * kCount, gpu::load<kCount>(from + i * kCount));
  }
}

// Copies the pairs of a table. The bound of 6 blocks per multiprocessor lets ptxas use more registers. Without the
// bound ptxas would use 32 registers and spill one.
__global__ void __launch_bounds__(kBlock, 6) grouped_kernel(const __grid_constant__ Table table) {
  gpu::wait_for_earlier();
  int at = 0;  // index of the pair that holds the chunk; it only increases
  for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (at + 1 < table.count && chunk >= table.parts[at + 1].first_chunk) {
      ++at;
    }
    const Part& part = table.parts[at];
    const int64_t begin = (chunk - part.first_chunk) * kChunk;
    const int bytes = static_cast<int>(part.bytes - begin < kChunk ? part.bytes - begin : kChunk);
    const std::uint8_t* const src = part.src + begin;
    std::uint8_t* const dst = part.dst + begin;
    switch (part.width) {
      case 16:
        copy_chunk<std::uint8_t, 16>(src, dst, bytes);
        break;
      case 8:
        copy_chunk<std::uint64_t, 1>(src, dst, bytes);
        break;
      case 4:
        copy_chunk<std::uint32_t, 1>(src, dst, bytes);
        break;
      case 2:
        copy_chunk<std::uint16_t, 1>(src, dst, bytes);
        break;
      default:
        copy_chunk<std::uint8_t, 1>(src, dst, bytes);
    }
  }
}

int width_of(const void* src, const void* dst, int64_t bytes) {
  if (gpu::aligned_to_vectors(src, dst)) {
    return 16;
  }
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(src) | reinterpret_cast<std::uintptr_t>(dst) |
                              static_cast<std::uintptr_t>(bytes);
  return static_cast<int>(std::min<std::uintptr_t>(8, bits & (~bits + 1)));
}

}  // namespace

void grouped_copy(CudaContext& context, std::span<const CopyPair> pairs) {
  Table table{};
  const auto flush = [&] {
    if (table.count > 0) {
      gpu::launch(grouped_kernel, dim3(gpu::blocks_for(table.chunks, 1)), dim3(kBlock), 0, context.stream(), table);
    }
    table.chunks = 0;
    table.count = 0;
  };
  for (const auto& [src, dst] : pairs) {
    const auto bytes = static_cast<int64_t>(src.bytes());
    if (bytes == 0) {
      continue;
    }
    table.parts[table.count++] = {gpu::data<const std::uint8_t>(src), gpu::data<std::uint8_t>(dst), bytes, table.chunks,
                                  width_of(src.data, dst.data, bytes)};
    table.chunks += (bytes + kChunk - 1) / kChunk;
    if (table.count == kMostPairs) {
      flush();
    }
  }
  flush();
}

}  // namespace lockstep::ops::backend

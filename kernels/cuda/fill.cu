// Sets all elements of out (count) to one value, for each of the eight element types. Blocks of 256 threads in a
// grid-stride loop. A thread stores 16 bytes at a time; neighbouring threads store neighbouring memory. out may begin
// at any address: the fewer than 16 bytes before the first 16-byte boundary, and those after the last whole store, are
// stored one element at a time. The host repeats the value to fill 16 bytes, so that the eight types need only four
// kernels, one per element size. No shared memory, nothing is read.
//
// Memory bandwidth bounds the kernel: each element is written once.

#include <lockstep/kernels/cuda/port.hpp>

#include <bit>
#include <cstring>

#include <lockstep/kernels/fill.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr std::int64_t kVector = 16;  // number of bytes of one store

/// Fills out (count) with `value`. The kernel writes `pattern`, which is `value` repeated, in `vectors` 16-byte stores
/// from the aligned address out + head on. The elements before and after these stores are stored one by one.
template <class T>
__global__ void fill_kernel(T* out, std::int64_t count, std::int64_t head, std::int64_t vectors, T value,
                            uint4 pattern) {
  gpu::wait_for_earlier();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  uint4* body = reinterpret_cast<uint4*>(out + head);
  for (std::int64_t i = thread; i < vectors; i += threads) {
    body[i] = pattern;
  }
  const std::int64_t in_body = vectors * (kVector / static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t i = thread; i < count - in_body; i += threads) {
    out[i < head ? i : i + in_body] = value;
  }
}

/// Enqueues fill_kernel for elements of the size of Bits, an unsigned integer type.
template <class Bits>
void fill_bits(CudaContext& context, Bits bits, const TensorView& out) {
  constexpr std::int64_t kPerVector = kVector / static_cast<std::int64_t>(sizeof(Bits));
  const std::int64_t count = out.numel();
  const auto address = reinterpret_cast<std::uintptr_t>(out.data);
  const auto to_boundary = static_cast<std::int64_t>((kVector - address % kVector) % kVector / sizeof(Bits));
  const std::int64_t head = to_boundary < count ? to_boundary : count;
  const std::int64_t vectors = (count - head) / kPerVector;
  const std::int64_t work = vectors > 2 * kPerVector ? vectors : 2 * kPerVector;
  uint4 pattern;
  for (std::size_t i = 0; i < sizeof(pattern); i += sizeof(Bits)) {
    std::memcpy(reinterpret_cast<char*>(&pattern) + i, &bits, sizeof(Bits));
  }
  gpu::launch(fill_kernel<Bits>, dim3(gpu::blocks_for(work, kBlock)), dim3(kBlock), 0, context.stream(),
              static_cast<Bits*>(out.data), count, head, vectors, bits, pattern);
}

}  // namespace

void fill(CudaContext& context, double value, const TensorView& out) {
  if (out.numel() == 0) {
    return;
  }
  visit_dtype(out.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (sizeof(T) == 1) {
      fill_bits(context, std::bit_cast<std::uint8_t>(static_cast<T>(value)), out);
    } else if constexpr (sizeof(T) == 2) {
      fill_bits(context, T(static_cast<float>(value)).bits, out);
    } else if constexpr (sizeof(T) == 4) {
      fill_bits(context, std::bit_cast<std::uint32_t>(static_cast<T>(value)), out);
    } else {
      fill_bits(context, std::bit_cast<std::uint64_t>(static_cast<T>(value)), out);
    }
  });
}

}  // namespace lockstep::ops::backend

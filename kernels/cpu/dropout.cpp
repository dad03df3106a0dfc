#include <lockstep/kernels/dropout.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kQuad = 4;      // number of elements that share one block of random words
constexpr int64_t kGrain = 2048;  // number of quads that justify another thread

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

void dropout(CpuContext& context, const DropoutDesc& desc, const TensorView& sample_ids, const TensorView& epoch,
             const TensorView& x, const TensorView& y) {
  if (x.numel() == 0) {
    return;
  }
  const int64_t samples = x.shape[0];
  const int64_t extent = x.numel() / samples;
  const int64_t quads = (extent + kQuad - 1) / kQuad;  // number of quads in a sample
  const int64_t* ids = sample_ids.as<int64_t>();       // shape (N)
  const auto now = static_cast<std::uint64_t>(*epoch.as<int64_t>());
  const std::array<std::uint32_t, 2> key = random_key(desc.seed, RandomUse::dropout, now, desc.layer);
  const std::uint32_t threshold = dropout_threshold(desc.rate);
  visit_element(x.dtype, "dropout", [&]<class T>(std::type_identity<T>) {
    const auto factor = static_cast<Value<T>>(1 / (1 - desc.rate));
    const T* px = x.as<T>();  // shape (N, extent)
    T* py = y.as<T>();        // shape (N, extent)
    parallel_ranges(context, samples * quads, kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto id = static_cast<std::uint64_t>(ids[i / quads]);
        const auto block = static_cast<std::uint64_t>(i % quads);
        const std::array<std::uint32_t, 4> words = philox({low(block), high(block), low(id), high(id)}, key);
        const int64_t first = i / quads * extent + i % quads * kQuad;
        const int64_t count = std::min(kQuad, extent - i % quads * kQuad);
        for (int64_t j = 0; j < count; ++j) {
          py[first + j] = words[static_cast<std::size_t>(j)] < threshold ? T{0} : T(value_of(px[first + j]) * factor);
        }
      }
    });
  });
}

}  // namespace lockstep::ops::backend

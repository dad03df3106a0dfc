#include <lockstep/kernels/hash.hpp>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kGrain = 16384;  // number of words that justify another thread
constexpr std::int64_t kWord = 8;

/// Returns number `index` of the random generator SplitMix64 that starts with `seed`.
std::uint64_t split_mix(std::uint64_t seed, std::int64_t index) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::uint64_t load_word(const std::uint8_t* from, std::int64_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, static_cast<std::size_t>(bytes));
  return word;
}

}  // namespace

void hash_range(CpuContext& context, const TensorView& x, const TensorView& result) {
  const auto* from = static_cast<const std::uint8_t*>(x.data);
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  std::atomic<std::uint64_t> total = split_mix(static_cast<std::uint64_t>(bytes), 0);
  parallel_ranges(context, bytes / kWord, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      sum += split_mix(load_word(from + i * kWord, kWord), i);
    }
    total.fetch_add(sum, std::memory_order_relaxed);  // relaxed: the total does not depend on the order
  });
  const std::int64_t whole = bytes / kWord;
  if (const std::int64_t rest = bytes % kWord; rest > 0) {
    total += split_mix(load_word(from + whole * kWord, rest), whole);
  }
  *result.as<std::uint64_t>() = total;
}

}  // namespace lockstep::ops::backend

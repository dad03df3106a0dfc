#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <lockstep/kernels/cpu/element.hpp>

/// Sums of batch norm in registers: the sums of kLanes channels over a group of periods. Vectors are 32 bytes wide on
/// every processor, so that a tensor is cut the same way everywhere. The vectors of cpu/lanes.hpp differ: they are as
/// wide as the processor's registers.
namespace lockstep::ops::batch_norm {

/// Approximate number of elements that are summed in registers before the sums are added to the sums in memory.
inline constexpr std::int64_t kGroup = 2048;

/// Number of channels whose sums are kept in registers together: 128 bytes.
template <class T>
inline constexpr std::int64_t kLanes = 128 / sizeof(Value<T>);

/// Calls f(offset, phase, periods) for groups of up to 64 periods. A period is one or more rows. In each period of the
/// group f sums the kLanes elements from `phase` on. The groups cover all full periods in [0, count). Returns where the
/// last, partial period begins.
template <class T, class F>
std::int64_t for_lanes(std::int64_t count, std::int64_t period, F&& f) {
  const std::int64_t periods = count / period;
  const std::int64_t group = std::clamp(kGroup / period, std::int64_t{8}, std::int64_t{64});
  for (std::int64_t first = 0; first < periods; first += group) {
    for (std::int64_t phase = 0; phase < period; phase += kLanes<T>) {
      f(first * period + phase, phase, std::min(group, periods - first));
    }
  }
  return periods * period;
}

/// Prefetches the kLanes elements that follow the kLanes elements at `lanes` in the same row. A loop reads
/// these elements next, and the processor's own prefetcher does not predict these reads.
template <class T>
void prefetch_next(const T* lanes) {
  __builtin_prefetch(lanes + kLanes<T>);
  if constexpr (kLanes<T> * sizeof(T) > 64) {
    __builtin_prefetch(lanes + kLanes<T> + kLanes<T> / 2);
  }
}

/// A vector of 32 bytes with elementwise + - * (an extension of gcc and clang). Arrays of this type stay in registers;
/// arrays of T do not.
template <class V>
struct VectorOf {
  using Type [[gnu::vector_size(32)]] = V;
};
template <class T>
using Vector = typename VectorOf<Value<T>>::Type;

template <class T>
void load(const T* from, Vector<T>& to) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    using Halves [[gnu::vector_size(16)]] = std::uint16_t;
    using Words [[gnu::vector_size(32)]] = std::uint32_t;
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    const Words words = __builtin_convertvector(bits, Words) << 16;
    std::memcpy(&to, &words, sizeof to);
  } else {
    std::memcpy(&to, from, sizeof to);
  }
}

template <class V>
void add_to(V* sums, const Vector<V>& values) {
  Vector<V> v;
  load(sums, v);
  v += values;
  std::memcpy(sums, &v, sizeof v);
}

inline constexpr int kVectors = 4;  // number of vectors that hold the sums of kLanes channels

}  // namespace lockstep::ops::batch_norm

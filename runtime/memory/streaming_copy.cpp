#include <lockstep/runtime/memory/streaming_copy.hpp>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep {

void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t head = std::min(bytes, (0 - reinterpret_cast<std::uintptr_t>(to)) % sizeof(__m128i));
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 4 * sizeof(__m128i) <= bytes; at += 4 * sizeof(__m128i)) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i values[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1), _mm_loadu_si128(source + 2),
                              _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(target + i, values[i]);
    }
  }
  _mm_sfence();  // makes the stores visible before any later store, such as a signal that the copy is complete
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace lockstep

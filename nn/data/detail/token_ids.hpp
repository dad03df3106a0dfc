#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// Code that readers and writers of token ids share.
namespace lockstep::nn::detail {

/// Implements the widen_ids() below for ids of the unsigned integer type T.
template <class T>
std::size_t widen_ids(const std::byte* from, std::int64_t vocabulary, std::span<std::int32_t> out) {
  static_assert(sizeof(T) <= 4);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T id = 0;  // files and hosts are both little-endian
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    largest = std::max<std::uint32_t>(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  if (static_cast<std::int64_t>(largest) < vocabulary) {
    return out.size();
  }
  return static_cast<std::size_t>(std::find_if(out.begin(), out.end(),
                                               [&](std::int32_t id) {
                                                 return static_cast<std::int64_t>(static_cast<std::uint32_t>(id)) >=
                                                        vocabulary;
                                               }) -
                                  out.begin());
}

/// Copies out.size() ids of `width` (1, 2 or 4) bytes each from `from` to `out`. An id above 2^31 - 1 becomes the i32
/// with equal bits. Returns the index of the first id that is not below `vocabulary`, or out.size() if all ids are
/// below `vocabulary`.
inline std::size_t widen_ids(const std::byte* from, std::uint64_t width, std::int64_t vocabulary,
                             std::span<std::int32_t> out) {
  switch (width) {
    case 1:
      return widen_ids<std::uint8_t>(from, vocabulary, out);
    case 2:
      return widen_ids<std::uint16_t>(from, vocabulary, out);
    default:
      return widen_ids<std::uint32_t>(from, vocabulary, out);
  }
}

}  // namespace lockstep::nn::detail

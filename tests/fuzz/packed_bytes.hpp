#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <zlib.h>

/// Access to the bytes of packed files, for readers that correct the checksums of an input.
namespace lockstep::fuzz {

inline constexpr std::size_t kBegin = 16;
inline constexpr std::size_t kEnd = 64;

/// Returns the number in `count` bytes, little-endian, from byte `at` on.
inline std::uint64_t number(const std::string& bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  }
  return value;
}

inline std::uint32_t crc_of(const std::string& bytes, std::size_t at, std::size_t count, std::uint32_t before = 0) {
  return static_cast<std::uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data() + at), std::min(count, bytes.size() - at)));
}

inline void put(std::string& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) {
    bytes.at(at + i) = static_cast<char>(value >> 8 * i & 0xFF);
  }
}

}  // namespace lockstep::fuzz

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

inline constexpr std::uint64_t kFnvBegin = 0xcbf29ce484222325ULL;

/// Continues the 64-bit FNV-1a hash `hash` with `bytes`. The hash tells different contents apart, but gives no
/// protection against an adversary.
[[nodiscard]] inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnvBegin) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace lockstep

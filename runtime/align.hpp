#pragma once

#include <cstddef>

namespace lockstep {

/// `bytes` rounded up to a multiple of `alignment`.
[[nodiscard]] constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace lockstep

#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::ops::images {

/// Four holds four floats in a 16-byte vector register, which all supported processors have; Whole holds four integers.
using Four = float __attribute__((vector_size(16)));
using Whole = std::int32_t __attribute__((vector_size(16)));

/// Returns the four floats at `from`, which may be any address.
[[nodiscard]] inline Four four(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace lockstep::ops::images

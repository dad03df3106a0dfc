#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::ops::images {

/// Four floats in a vector register of 16 bytes, which every supported processor has. Whole holds four whole numbers.
using Four = float __attribute__((vector_size(16)));
using Whole = std::int32_t __attribute__((vector_size(16)));

/// Loads four floats from any address.
[[nodiscard]] inline Four four(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace lockstep::ops::images

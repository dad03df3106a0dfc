#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::ops::images {

/// Four floats of a vector register, which every processor that this is built for has, and four whole numbers.
using Four = float __attribute__((vector_size(16)));
using Whole = std::int32_t __attribute__((vector_size(16)));

/// From any address.
[[nodiscard]] inline Four four(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace lockstep::ops::images

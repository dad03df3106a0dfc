#pragma once

#include <array>
#include <cstdint>

#include <lockstep/runtime/tensor/shape.hpp>

namespace lockstep::ops {

/// A 2-D pooling window. An output extent is floor((input extent + pad_before + pad_after - kernel) / stride) + 1.
struct PoolDesc {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> pad_before{0, 0};
  std::array<std::int64_t, 2> pad_after{0, 0};
};

/// Returns the shape of the pooled tensor of x (N, H, W, C). Throws ShapeError when the window does not fit into the
/// padded x, or when a window lies in padding only.
[[nodiscard]] Shape pooled_shape(const PoolDesc& desc, const Shape& x);

}  // namespace lockstep::ops

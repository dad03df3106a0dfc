#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

// Parts that copy() and the copying kernels share: the checks, the loops and the host's copy.

/// The loops of a copy: extents with one stride per side. There are as few axes as the strides allow, and the axis with
/// the smallest destination stride is last. There is at least one axis; only a copy of one element has an axis of
/// extent 1.
struct CopyLoops {
  int rank = 0;
  std::int64_t extent[Dims::kMaxRank];
  std::int64_t src[Dims::kMaxRank];  ///< strides, in elements
  std::int64_t dst[Dims::kMaxRank];
};

/// Makes the loops. Both views have the same shape, with at least one element.
[[nodiscard]] CopyLoops make_copy_loops(const TensorView& src, const TensorView& dst);

/// Joins two axes into one wherever the strides of both sides allow it. Loops without an axis become one axis of extent
/// 1.
void join_axes(CopyLoops& loops);

/// ShapeError when the shapes differ, memory is missing, dst has stride 0 on an axis of more than one element, or both
/// views are contiguous and overlap. Views without elements pass.
void require_copyable(std::string_view op, const TensorView& src, const TensorView& dst);

/// Copies at once, in the calling thread. The views have passed require_copyable().
void copy_on_host(const CpuContext& context, const TensorView& src, const TensorView& dst);

}  // namespace lockstep

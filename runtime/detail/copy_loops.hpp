#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

// What copy() and kernels that copy share: the checks, the loops, and the host's copy itself.

/// The loops of a copy: extents with a stride on each side, as few axes as the strides allow, the one with the smallest
/// destination stride last. At least one axis, none of extent 1 but for a copy of one element.
struct CopyLoops {
  int rank = 0;
  std::int64_t extent[Dims::kMaxRank];
  std::int64_t src[Dims::kMaxRank];  ///< strides, in elements
  std::int64_t dst[Dims::kMaxRank];
};

/// The views have one shape with at least one element.
[[nodiscard]] CopyLoops make_copy_loops(const TensorView& src, const TensorView& dst);

/// Makes one axis of two wherever the strides of both sides allow it; of no axis one element.
void join_axes(CopyLoops& loops);

/// ShapeError when the shapes differ, memory is missing, dst has stride 0 on an axis of more than one element, or both
/// are contiguous and overlap. Views without elements pass.
void require_copyable(std::string_view op, const TensorView& src, const TensorView& dst);

/// What copy() enqueues on the host, at once: views that require_copyable() has passed.
void copy_on_host(const CpuContext& context, const TensorView& src, const TensorView& dst);

}  // namespace lockstep

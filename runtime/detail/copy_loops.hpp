#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

// Both copy() and the copying kernels use the functions of this file: the checks, the loops and the copy on the host.

/// Loops of a copy: for each axis, the extent and one stride for each side. There are as few axes as the strides allow;
/// the last axis has the smallest stride in dst. There is at least one axis. An axis of extent 1 occurs only in the
/// copy of a single element.
struct CopyLoops {
  int rank = 0;
  std::int64_t extent[Dims::kMaxRank];
  std::int64_t src[Dims::kMaxRank];  ///< strides of the source, in elements
  std::int64_t dst[Dims::kMaxRank];
};

/// Makes the loops of a copy. Both views have the same shape, with at least one element.
[[nodiscard]] CopyLoops make_copy_loops(const TensorView& src, const TensorView& dst);

/// Joins two axes into one wherever both sides' strides allow it. Loops without any axis get one axis of extent 1.
void join_axes(CopyLoops& loops);

/// Throws ShapeError if the shapes differ, if memory is missing, if dst has stride 0 on an axis of more than one
/// element, or if both views are contiguous and overlap. Accepts all views without elements.
void require_copyable(std::string_view op, const TensorView& src, const TensorView& dst);

/// Copies in the calling thread, before the call returns. The views must have passed require_copyable().
void copy_on_host(const CpuContext& context, const TensorView& src, const TensorView& dst);

}  // namespace lockstep

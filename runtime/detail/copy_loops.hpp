#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

// The parts of a copy that copy() and the kernels of ops::strided_copy share: the checks, the loops and the copy on the
// host.

/// Loops of a copy: for each axis, the extent, the stride in src and the stride in dst. There are as few axes as the
/// strides allow, but at least one. The last axis has the smallest stride in dst. An axis of extent 1 occurs only in
/// the copy of a single element.
struct CopyLoops {
  int rank = 0;
  std::int64_t extent[Dims::kMaxRank];
  std::int64_t src[Dims::kMaxRank];  ///< strides of the source, in elements
  std::int64_t dst[Dims::kMaxRank];
};

/// Makes the loops of a copy. Both views have the same shape, with at least one element.
[[nodiscard]] CopyLoops make_copy_loops(const TensorView& src, const TensorView& dst);

/// Joins two axes into one wherever the strides of src and of dst allow it. Loops without any axis get one axis of
/// extent 1.
void join_axes(CopyLoops& loops);

/// Throws ShapeError in four cases: the shapes differ; memory is missing; dst has stride 0 on an axis of more than one
/// element; both views are contiguous and overlap. Accepts all views without elements.
void require_copyable(std::string_view op, const TensorView& src, const TensorView& dst);

/// Copies in the calling thread, before the call returns. The views must have passed require_copyable().
void copy_on_host(const CpuContext& context, const TensorView& src, const TensorView& dst);

}  // namespace lockstep

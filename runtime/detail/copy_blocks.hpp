#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <lockstep/runtime/detail/copy_loops.hpp>

/// Functions that plan a copy before copy() calls CUDA. The plan depends only on the loops, not on the kind of memory.
namespace lockstep::detail {

/// Result of order_loops(): loops of a copy that go forwards through dst. The offsets are the distances, in elements,
/// from the views' first elements to the loops' first elements.
struct OrderedLoops {
  CopyLoops loops;
  std::int64_t src_offset = 0;
  std::int64_t dst_offset = 0;
};

/// Makes loops like make_copy_loops(), but reverses every axis on which dst has a negative stride, in src and in dst.
[[nodiscard]] OrderedLoops order_loops(const TensorView& src, const TensorView& dst);

/// Returns true if the innermost axis has stride 1 in src and in dst.
[[nodiscard]] bool has_rows(const CopyLoops& loops);

/// Data of one copy call: `depth` slices of `height` rows of `width` bytes. A pitch is the distance from one row to the
/// next, in bytes, and at least the width. The distance of slices is a whole number of pitches.
struct CopyBlock {
  std::size_t width = 0;
  std::int64_t height = 1;
  std::int64_t depth = 1;
  std::size_t src_pitch = 0;
  std::size_t dst_pitch = 0;
  std::int64_t src_rows = 1;  ///< distance of two slices of the source, in rows
  std::int64_t dst_rows = 1;
};

/// Plan of a copy: one block for each index of `outer`. The strides of `outer` are in bytes; `outer` may have no axis.
struct BlockPlan {
  CopyBlock block;
  CopyLoops outer;
  [[nodiscard]] std::int64_t blocks() const;
};

/// Plans the blocks with as few axes in `outer` as possible. The limits are the strides and CUDA's pitch, which must be
/// at least the width and at most 2^31 - 1 bytes.
[[nodiscard]] BlockPlan plan_blocks(const CopyLoops& loops, std::size_t element_size);

/// Calls f(src_offset, dst_offset) for each index of `loops`, which have 0 to 8 axes, in row-major order.
template <class F>
void for_each_index(const CopyLoops& loops, F&& f) {
  std::int64_t index[Dims::kMaxRank] = {};
  std::int64_t src = 0;
  std::int64_t dst = 0;
  while (true) {
    f(src, dst);
    int axis = loops.rank - 1;
    for (; axis >= 0; --axis) {
      src += loops.src[axis];
      dst += loops.dst[axis];
      if (++index[axis] < loops.extent[axis]) {
        break;
      }
      src -= index[axis] * loops.src[axis];
      dst -= index[axis] * loops.dst[axis];
      index[axis] = 0;
    }
    if (axis < 0) {
      return;
    }
  }
}

/// Cuts the loops along outer axes into boxes, each with at most `most` (>= 1) elements of dst. Calls f(box,
/// src_offset, dst_offset) for each box. Axes on which dst has stride 0 are innermost (order_loops) and never cut. All
/// indices of such an axis write the same element of dst, so this element counts once.
template <class F>
void for_each_box(const CopyLoops& loops, std::int64_t most, F&& f) {
  int cut = loops.rank - 1;
  std::int64_t inner = 1;  // number of elements of dst at one index of axis `cut`
  while (cut > 0 && (loops.dst[cut] == 0 || inner * loops.extent[cut] <= most)) {
    inner *= loops.dst[cut] == 0 ? 1 : loops.extent[cut];
    --cut;
  }
  const std::int64_t extent = loops.extent[cut];
  const std::int64_t step = loops.dst[cut] == 0 ? extent : std::max<std::int64_t>(1, most / inner);
  CopyLoops outer = loops;
  outer.rank = cut;
  CopyLoops box;
  box.rank = loops.rank - cut;
  std::copy(loops.extent + cut, loops.extent + loops.rank, box.extent);
  std::copy(loops.src + cut, loops.src + loops.rank, box.src);
  std::copy(loops.dst + cut, loops.dst + loops.rank, box.dst);
  for_each_index(outer, [&](std::int64_t src, std::int64_t dst) {
    for (std::int64_t begin = 0; begin < extent; begin += step) {
      box.extent[0] = std::min(step, extent - begin);
      f(static_cast<const CopyLoops&>(box), src + begin * loops.src[cut], dst + begin * loops.dst[cut]);
    }
  });
}

/// Writes the strides that the box has when it is packed without gaps, in the order of its axes. Axes with stride 0 in
/// dst get 0.
void pack_strides(const CopyLoops& box, std::int64_t* strides);

}  // namespace lockstep::detail

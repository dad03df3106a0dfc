#include <lockstep/runtime/detail/copy_blocks.hpp>

namespace lockstep::detail {
namespace {

constexpr std::int64_t kMostPitch = (std::int64_t{1} << 31) - 1;  // cudaDeviceProp::memPitch, equal on every GPU so far

}  // namespace

OrderedLoops order_loops(const TensorView& src, const TensorView& dst) {
  OrderedLoops ordered{.loops = make_copy_loops(src, dst)};
  CopyLoops& loops = ordered.loops;
  for (int axis = 0; axis < loops.rank; ++axis) {
    if (loops.dst[axis] < 0) {
      ordered.src_offset += (loops.extent[axis] - 1) * loops.src[axis];
      ordered.dst_offset += (loops.extent[axis] - 1) * loops.dst[axis];
      loops.src[axis] = -loops.src[axis];
      loops.dst[axis] = -loops.dst[axis];
    }
  }
  return ordered;
}

bool has_rows(const CopyLoops& loops) {
  return loops.src[loops.rank - 1] == 1 && loops.dst[loops.rank - 1] == 1;
}

std::int64_t BlockPlan::blocks() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < outer.rank; ++axis) {
    count *= outer.extent[axis];
  }
  return count;
}

BlockPlan plan_blocks(const CopyLoops& loops, std::size_t element_size) {
  const auto size = static_cast<std::int64_t>(element_size);
  BlockPlan plan;
  CopyBlock& block = plan.block;
  int axis = loops.rank - 1;
  std::int64_t width = size;
  if (has_rows(loops)) {
    width *= loops.extent[axis--];
  }
  block.width = block.src_pitch = block.dst_pitch = static_cast<std::size_t>(width);
  const auto is_pitch = [&](std::int64_t stride) {
    return stride >= 0 && stride <= kMostPitch / size && stride * size >= width;
  };
  if (axis >= 0 && is_pitch(loops.src[axis]) && is_pitch(loops.dst[axis])) {
    const std::int64_t src_pitch = loops.src[axis];  // distance of two rows, in elements
    const std::int64_t dst_pitch = loops.dst[axis];
    block.height = loops.extent[axis--];
    block.src_pitch = static_cast<std::size_t>(src_pitch * size);
    block.dst_pitch = static_cast<std::size_t>(dst_pitch * size);
    const auto is_slice = [&](std::int64_t stride, std::int64_t pitch) {
      return stride > 0 && stride % pitch == 0 && stride / pitch >= block.height;
    };
    if (axis >= 0 && is_slice(loops.src[axis], src_pitch) && is_slice(loops.dst[axis], dst_pitch)) {
      block.depth = loops.extent[axis];
      block.src_rows = loops.src[axis] / src_pitch;
      block.dst_rows = loops.dst[axis--] / dst_pitch;
    }
  }
  plan.outer.rank = axis + 1;
  for (; axis >= 0; --axis) {
    plan.outer.extent[axis] = loops.extent[axis];
    plan.outer.src[axis] = loops.src[axis] * size;
    plan.outer.dst[axis] = loops.dst[axis] * size;
  }
  return plan;
}

void pack_strides(const CopyLoops& box, std::int64_t* strides) {
  std::int64_t stride = 1;
  for (int axis = box.rank - 1; axis >= 0; --axis) {
    strides[axis] = box.dst[axis] == 0 ? 0 : stride;
    stride *= box.dst[axis] == 0 ? 1 : box.extent[axis];
  }
}

}  // namespace lockstep::detail

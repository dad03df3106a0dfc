#include <lockstep/runtime/tensor/copy.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <lockstep/runtime/context/parallel.hpp>
#include <lockstep/runtime/detail/copy_loops.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/memory/streaming_copy.hpp>

namespace lockstep {
namespace {

// Bytes per thread: a copy of n bytes with memcpy uses at most n / kGrainBytes threads, rounded up.
constexpr std::int64_t kGrainBytes = std::int64_t{1} << 20;
// Elements per thread: a copy of n elements with strides or a conversion uses at most n / kGrainElements threads,
// rounded up.
constexpr std::int64_t kGrainElements = 1 << 14;

/// Copies of at least this many bytes bypass the caches.
constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

/// Converts to an integer and truncates toward zero. A value beyond the range of To becomes the nearest value of To;
/// NaN becomes 0. The type From represents all bounds exactly.
template <class To, class From>
To to_integer(From value) {
  constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
  constexpr To kHalf = std::numeric_limits<To>::max() / 2 + 1;
  constexpr From kEnd = 2 * static_cast<From>(kHalf);  // first integer above the range of To
  if (value >= kEnd) {
    return std::numeric_limits<To>::max();
  }
  if (value <= kLow) {
    return std::numeric_limits<To>::min();
  }
  return value == value ? static_cast<To>(value) : To{0};
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class Src, class Dst>
void copy_row(const Src* src, std::int64_t src_stride, Dst* dst, std::int64_t dst_stride, std::int64_t count) {
  if (src_stride == 1 && dst_stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      dst[i] = convert<Dst>(src[i]);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    dst[i * dst_stride] = convert<Dst>(src[i * src_stride]);
  }
}

/// Copies elements [begin, end), counted in the order of the loops.
template <class Src, class Dst>
void copy_range(const CopyLoops& loops, const Src* src, Dst* dst, std::int64_t begin, std::int64_t end) {
  const int last = loops.rank - 1;
  std::int64_t index[Dims::kMaxRank] = {};
  std::int64_t rest = begin;
  for (int axis = last; axis >= 0; --axis) {
    index[axis] = rest % loops.extent[axis];
    rest /= loops.extent[axis];
  }
  while (begin < end) {
    std::int64_t src_offset = 0;
    std::int64_t dst_offset = 0;
    for (int axis = 0; axis <= last; ++axis) {
      src_offset += index[axis] * loops.src[axis];
      dst_offset += index[axis] * loops.dst[axis];
    }
    const std::int64_t count = std::min(end - begin, loops.extent[last] - index[last]);
    copy_row(src + src_offset, loops.src[last], dst + dst_offset, loops.dst[last], count);
    begin += count;
    index[last] = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      if (++index[axis] < loops.extent[axis]) {
        break;
      }
      index[axis] = 0;
    }
  }
}

template <class Src, class Dst>
void copy_elements(const CpuContext& context, const TensorView& src, const TensorView& dst) {
  const CopyLoops loops = make_copy_loops(src, dst);
  parallel_ranges(context, src.numel(), kGrainElements, [&](std::int64_t begin, std::int64_t end) {
    copy_range(loops, static_cast<const Src*>(src.data), static_cast<Dst*>(dst.data), begin, end);
  });
}

/// Copies between views of one element type. The copy depends only on the size of an element, not on the type itself.
void copy_same_type(const CpuContext& context, const TensorView& src, const TensorView& dst) {
  if (src.is_contiguous() && dst.is_contiguous()) {
    const std::size_t bytes = src.bytes();
    const auto move = bytes >= kStreamBytes ? streaming_copy : [](std::byte* to, const std::byte* from, std::size_t n) {
      std::memcpy(to, from, n);
    };
    parallel_ranges(context, static_cast<std::int64_t>(bytes), kGrainBytes, [&](std::int64_t begin, std::int64_t end) {
      move(static_cast<std::byte*>(dst.data) + begin, static_cast<const std::byte*>(src.data) + begin,
           static_cast<std::size_t>(end - begin));
    });
    return;
  }
  switch (size_of(src.dtype)) {
    case 1:
      return copy_elements<std::uint8_t, std::uint8_t>(context, src, dst);
    case 2:
      return copy_elements<std::uint16_t, std::uint16_t>(context, src, dst);
    case 4:
      return copy_elements<std::uint32_t, std::uint32_t>(context, src, dst);
    default:
      return copy_elements<std::uint64_t, std::uint64_t>(context, src, dst);
  }
}

void count(CopyCounts& counts, const TensorView& src, const TensorView& dst) {
  const bool from_host = src.device.kind == DeviceKind::cpu;
  const bool to_host = dst.device.kind == DeviceKind::cpu;
  (from_host ? (to_host ? counts.host_to_host : counts.host_to_device)
             : (to_host ? counts.device_to_host : counts.device_to_device)) +=
      from_host == to_host || from_host ? dst.bytes() : src.bytes();
}

}  // namespace

void join_axes(CopyLoops& loops) {
  int kept = 0;
  for (int axis = 0; axis < loops.rank; ++axis) {
    const bool joins = kept > 0 && loops.src[kept - 1] == loops.src[axis] * loops.extent[axis] &&
                       loops.dst[kept - 1] == loops.dst[axis] * loops.extent[axis];
    const int to = joins ? kept - 1 : kept++;
    loops.extent[to] = (joins ? loops.extent[to] : 1) * loops.extent[axis];
    loops.src[to] = loops.src[axis];
    loops.dst[to] = loops.dst[axis];
  }
  loops.rank = kept;
  if (kept == 0) {
    loops.rank = 1;
    loops.extent[0] = loops.src[0] = loops.dst[0] = 1;
  }
}

CopyLoops make_copy_loops(const TensorView& src, const TensorView& dst) {
  CopyLoops loops;
  for (int axis = 0; axis < src.shape.rank(); ++axis) {
    if (src.shape[axis] == 1) {
      continue;
    }
    int at = loops.rank++;
    for (; at > 0 && std::abs(loops.dst[at - 1]) < std::abs(dst.strides[axis]); --at) {
      loops.extent[at] = loops.extent[at - 1];
      loops.src[at] = loops.src[at - 1];
      loops.dst[at] = loops.dst[at - 1];
    }
    loops.extent[at] = src.shape[axis];
    loops.src[at] = src.strides[axis];
    loops.dst[at] = dst.strides[axis];
  }
  join_axes(loops);
  return loops;
}

void require_copyable(std::string_view op, const TensorView& src, const TensorView& dst) {
  require<ShapeError>(src.shape == dst.shape, op, ": src is ", src.shape, ", dst is ", dst.shape,
                      ", expected both of one shape");
  if (src.numel() == 0) {
    return;
  }
  require<ShapeError>(src.data != nullptr && dst.data != nullptr, op, ": ", src.data == nullptr ? "src" : "dst",
                      " has no memory, expected a view of memory");
  for (const TensorView* view : {&src, &dst}) {
    require<ShapeError>(reinterpret_cast<std::uintptr_t>(view->data) % size_of(view->dtype) == 0, op, ": ",
                        view == &src ? "src" : "dst", " ", *view, " begins at address ", view->data,
                        ", expected a multiple of the ", size_of(view->dtype), " bytes of its element");
  }
  for (int axis = 0; axis < dst.shape.rank(); ++axis) {
    require<ShapeError>(dst.shape[axis] == 1 || dst.strides[axis] != 0, op, ": dst ", dst.shape,
                        " has stride 0 on axis ", axis, ", expected memory of its own for each element");
  }
  require<ShapeError>(!(src.is_contiguous() && dst.is_contiguous() && overlaps(src, dst)), op,
                      ": src and dst overlap, expected memory of its own for each");
}

void copy_on_host(const CpuContext& context, const TensorView& src, const TensorView& dst) {
  if (src.dtype == dst.dtype) {
    copy_same_type(context, src, dst);
    return;
  }
  visit_dtype(src.dtype, [&](auto from) {
    visit_dtype(dst.dtype, [&](auto to) {
      copy_elements<typename decltype(from)::type, typename decltype(to)::type>(context, src, dst);
    });
  });
}

void copy(Context& context, const TensorView& src, const TensorView& dst) {
  const Device here = context.device();
  require<DeviceError>(src.device == here || dst.device == here, "copy: src is on ", src.device, ", dst on ",
                       dst.device, ", the context on ", here, ", expected src or dst where the context is");
  require<DeviceError>(src.device == dst.device || here.kind == DeviceKind::cuda, "copy from ", src.device, " to ",
                       dst.device, " with a context on ", here, ", expected the context of the CUDA device");
  require_copyable("copy", src, dst);
  if (src.numel() == 0) {
    return;
  }
  if (here.kind == DeviceKind::cuda) {
    detail::cuda_copy(context, src, dst);
  } else {
    auto& cpu = static_cast<CpuContext&>(context);
    cpu.stream().enqueue([&cpu, src, dst] { copy_on_host(cpu, src, dst); });
  }
  count(context.copied(), src, dst);
}

void copy_now(Context& context, const TensorView& src, const TensorView& dst) {
  copy(context, src, dst);
  context.synchronize();
}

}  // namespace lockstep

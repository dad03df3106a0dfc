// Copies src to dst for views of one shape with any strides and types, as loops over up to 8 axes (CopyLoops). There
// are three kernels, with 256 threads a block.
//
//   rows_kernel   goes along the inner axis: in 16-byte pieces if the axis is contiguous in both views, otherwise
//                 element by element
//   tiles_kernel  transposes planes that are contiguous along one axis in src and along another axis in dst. The planes
//                 go through tiles in shared memory (32 x 32 elements, or 64 x 64 of 1 or 2 bytes; 4 to 9 KB), so that
//                 both views are accessed at 64 or more neighbouring bytes
//   mixed_kernel  chooses the types at run time; does all copies between two types of which at least one is an integer
//                 type
//
// rows_kernel and tiles_kernel are compiled for each element size and each pair of floating types.
//
// Bound by memory bandwidth: each element is read once and written once, in the sizes of its two types. In copies
// element by element with large strides, each element costs a whole sector of 32 bytes, and place_of() costs a division
// per axis.

#include <limits>

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/detail/copy_loops.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

/// Converts `value` between floating types. Returns `value` unchanged if To and From are one type: a copy without
/// conversion uses the unsigned integer type of the element's size.
template <class To, class From>
__device__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return convert<To>(gpu::to_float(value));
  } else if constexpr (kIsHalf<To>) {
    return gpu::from_float<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

/// The position of an element, or of the first element of a piece, in both views.
struct Place {
  int64_t last;  ///< index on the last axis
  int64_t src;
  int64_t dst;
};

/// Returns position number `index` of the loops, counted in row-major order.
__device__ Place place_of(const CopyLoops& loops, int64_t index) {
  Place place{0, 0, 0};
  for (int axis = loops.rank - 1; axis >= 0; --axis) {
    const int64_t outer = axis == 0 ? 0 : index / loops.extent[axis];
    const int64_t at = index - outer * loops.extent[axis];
    if (axis == loops.rank - 1) {
      place.last = at;
    }
    place.src += at * loops.src[axis];
    place.dst += at * loops.dst[axis];
    index = outer;
  }
  return place;
}

/// Copies the rows of the views; a row has `row` elements. A thread takes a piece of kCount elements. With kCount > 1
/// the rows must be contiguous and 16-byte aligned in both views; the piece at the end of a row may be shorter. `loops`
/// goes over the pieces, with the strides of both views; src, dst: the first elements of the views.
template <class Src, class Dst, int kCount>
__global__ void __launch_bounds__(kBlock)
    rows_kernel(const __grid_constant__ CopyLoops loops, int64_t pieces, int64_t row, const Src* src, Dst* dst) {
  gpu::wait_for_earlier();
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  for (int64_t piece = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; piece < pieces; piece += threads) {
    const Place place = place_of(loops, piece);
    const Src* const from = src + place.src;
    Dst* const to = dst + place.dst;
    const int64_t rest = row - place.last * kCount;
    if (kCount == 1 || rest >= kCount) {
      const auto values = gpu::load<kCount>(from);
      gpu::Pack<Dst, kCount> result;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        result.at[j] = convert<Dst>(values.at[j]);
      }
      gpu::store(to, result);
    } else {
      for (int64_t j = 0; j < rest; ++j) {
        to[j] = convert<Dst>(from[j]);
      }
    }
  }
}

/// A stack of planes whose rows are contiguous in src and whose columns are contiguous in dst.
struct Planes {
  int64_t rows, columns;
  int64_t src_pitch;  ///< distance in src from one row to the next, in elements
  int64_t dst_pitch;  ///< distance in dst from one column to the next, in elements
};

template <class T>
constexpr int kSide = sizeof(T) >= 4 ? 32 : 64;  // number of rows and of columns of a tile: 64 bytes or more a side

/// Transposes planes. A block takes tiles of kSide rows and columns through shared memory, so that neighbouring lanes
/// access neighbouring memory in both views. With kCount > 1 a lane accesses 16 bytes, and the numbers of rows and
/// columns in `planes` must be multiples of kCount. outer: the loops over the planes; src: planes (rows, columns), dst:
/// planes (columns, rows).
///
/// kPadding elements after each row of a tile make the row cover an odd number of banks (8-byte elements: of pairs of
/// banks). With 4-byte elements, no two lanes of a warp access the same bank. With 2-byte elements in 16-byte pieces,
/// two lanes that are neighbours along columns access the same bank.
template <class Src, class Dst, int kCount>
__global__ void __launch_bounds__(kBlock)
    tiles_kernel(const __grid_constant__ CopyLoops outer, int64_t tiles, const __grid_constant__ Planes planes,
                 const Src* src, Dst* dst) {
  gpu::wait_for_earlier();
  constexpr int kTile = kSide<Src>;
  constexpr int kPieces = kTile / kCount;  // number of pieces along one side of a tile
  constexpr int kPadding = sizeof(Src) >= 4 ? 1 : 4 / static_cast<int>(sizeof(Src));
  LOCKSTEP_SHARED(Src, tile, [kTile][kTile + kPadding]);
  const int64_t wide = (planes.columns + kTile - 1) / kTile;
  const int64_t high = (planes.rows + kTile - 1) / kTile;
  for (int64_t task = blockIdx.x; task < tiles; task += gridDim.x) {
    const int64_t strip = task / wide;
    const int64_t plane = strip / high;
    const int64_t first_column = (task - strip * wide) * kTile;
    const int64_t first_row = (strip - plane * high) * kTile;
    const Place place = place_of(outer, plane);
    const Src* const from = src + place.src + first_row * planes.src_pitch + first_column;
    Dst* const to = dst + place.dst + first_column * planes.dst_pitch + first_row;
    const int64_t rows = planes.rows - first_row;
    const int64_t columns = planes.columns - first_column;
    if (task != blockIdx.x) {
      __syncthreads();  // waits until all threads have read the previous task's tile
    }
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kBlock) {
      const int row = i / kPieces;
      const int column = i % kPieces * kCount;
      if (row < rows && column < columns) {
        const auto values = gpu::load<kCount>(from + row * planes.src_pitch + column);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          tile[row][column + j] = values.at[j];
        }
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kBlock) {
      const int column = i / kPieces;
      const int row = i % kPieces * kCount;
      if (column < columns && row < rows) {
        gpu::Pack<Dst, kCount> result;
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          result.at[j] = convert<Dst>(tile[row + j][column]);
        }
        gpu::store(to + column * planes.dst_pitch + row, result);
      }
    }
  }
}

template <class T>
inline constexpr T kMost = std::numeric_limits<T>::max();
template <class T>
inline constexpr T kLeast = std::numeric_limits<T>::min();

/// Converts `value` to an integer, truncating toward zero. A value beyond the range of To gives the nearest value of
/// To; NaN gives 0.
template <class To>
__device__ To saturate(double value) {
  constexpr double kLow = static_cast<double>(kLeast<To>);
  constexpr double kEnd = 2.0 * static_cast<double>(kMost<To> / 2 + 1);  // the maximum of To plus 1, exact in double
  if (value >= kEnd) {
    return kMost<To>;
  }
  if (value > kLow) {
    return static_cast<To>(value);
  }
  return value <= kLow ? kLeast<To> : To{0};
}

/// Calls f with element `i` of `memory`, which has type `type`, converted without loss to double, int64_t or uint64_t.
template <class F>
__device__ void with_element(DType type, const void* memory, int64_t i, F&& f) {
  switch (type) {
    case DType::f32:
      return f(static_cast<double>(static_cast<const float*>(memory)[i]));
    case DType::f64:
      return f(static_cast<const double*>(memory)[i]);
    case DType::bf16:
      return f(static_cast<double>(gpu::to_float(static_cast<const __nv_bfloat16*>(memory)[i])));
    case DType::f16:
      return f(static_cast<double>(gpu::to_float(static_cast<const __half*>(memory)[i])));
    case DType::u8:
      return f(static_cast<int64_t>(static_cast<const std::uint8_t*>(memory)[i]));
    case DType::i32:
      return f(static_cast<int64_t>(static_cast<const std::int32_t*>(memory)[i]));
    case DType::i64:
      return f(static_cast<const int64_t*>(memory)[i]);
    case DType::u64:
      return f(static_cast<const std::uint64_t*>(memory)[i]);
  }
}

template <class To, class From>
__device__ To to_integer(From value) {
  if constexpr (std::is_same_v<From, double>) {
    return saturate<To>(value);
  } else {
    return static_cast<To>(value);  // keeps only the low bits of `value`
  }
}

template <class From>
__device__ void store_element(From value, DType type, void* memory, int64_t i) {
  switch (type) {
    case DType::f32:
      static_cast<float*>(memory)[i] = static_cast<float>(value);
      break;
    case DType::f64:
      static_cast<double*>(memory)[i] = static_cast<double>(value);
      break;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(memory)[i] = gpu::from_float<__nv_bfloat16>(static_cast<float>(value));
      break;
    case DType::f16:
      static_cast<__half*>(memory)[i] = gpu::from_float<__half>(static_cast<float>(value));
      break;
    case DType::u8:
      static_cast<std::uint8_t*>(memory)[i] = to_integer<std::uint8_t>(value);
      break;
    case DType::i32:
      static_cast<std::int32_t*>(memory)[i] = to_integer<std::int32_t>(value);
      break;
    case DType::i64:
      static_cast<int64_t*>(memory)[i] = to_integer<int64_t>(value);
      break;
    case DType::u64:
      static_cast<std::uint64_t*>(memory)[i] = to_integer<std::uint64_t>(value);
      break;
  }
}

/// Copies `count` elements; a thread copies one element at a time. `loops` goes over the elements, with the strides of
/// both views. src, dst: the first elements of the views, which have the types `from` and `to`.
__global__ void __launch_bounds__(kBlock) mixed_kernel(const __grid_constant__ CopyLoops loops, int64_t count,
                                                       DType from, const void* src, DType to, void* dst) {
  gpu::wait_for_earlier();
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += threads) {
    const Place place = place_of(loops, i);
    with_element(from, src, place.src, [&](auto value) { store_element(value, to, dst, place.dst); });
  }
}

/// Returns true if `first` is 16-byte aligned, and so are all elements that the strides of all axes but `except` reach
/// from `first`. An element has `size` bytes.
bool pieces_fit(const void* first, const int64_t* strides, int rank, int except, std::size_t size) {
  bool fit = reinterpret_cast<std::uintptr_t>(first) % 16 == 0;
  for (int axis = 0; axis < rank; ++axis) {
    fit = fit && (axis == except || strides[axis] * static_cast<int64_t>(size) % 16 == 0);
  }
  return fit;
}

template <class Src, class Dst>
void copy_along_rows(CudaContext& context, CopyLoops loops, const Src* src, Dst* dst) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(Src) < sizeof(Dst) ? sizeof(Src) : sizeof(Dst));
  const int last = loops.rank - 1;
  const int64_t row = loops.extent[last];
  const bool wide = loops.src[last] == 1 && loops.dst[last] == 1 && row >= kWide &&
                    pieces_fit(src, loops.src, loops.rank, last, sizeof(Src)) &&
                    pieces_fit(dst, loops.dst, loops.rank, last, sizeof(Dst));
  if (wide) {
    loops.extent[last] = (row + kWide - 1) / kWide;
    loops.src[last] = loops.dst[last] = kWide;
  }
  int64_t pieces = 1;
  for (int axis = 0; axis < loops.rank; ++axis) {
    pieces *= loops.extent[axis];
  }
  gpu::launch(wide ? rows_kernel<Src, Dst, kWide> : rows_kernel<Src, Dst, 1>, dim3(gpu::blocks_for(pieces, kBlock)),
              dim3(kBlock), 0, context.stream(), loops, pieces, row, src, dst);
}

/// Returns the axis on which src is contiguous, if dst is contiguous on another axis and both axes are long enough for
/// a tile. Otherwise returns -1.
int turned_axis(const CopyLoops& loops) {
  constexpr int64_t kShortest = 16;
  const int last = loops.rank - 1;
  if (loops.dst[last] != 1 || loops.src[last] == 1 || loops.extent[last] < kShortest) {
    return -1;
  }
  for (int axis = 0; axis < last; ++axis) {
    if (loops.src[axis] == 1 && loops.extent[axis] >= kShortest) {
      return axis;
    }
  }
  return -1;
}

template <class Src, class Dst>
void copy_turned(CudaContext& context, const CopyLoops& loops, int turned, const Src* src, Dst* dst) {
  constexpr int kWide = std::is_same_v<Src, Dst> ? gpu::kPerVector<Src> : 1;
  const int last = loops.rank - 1;
  const Planes planes{loops.extent[last], loops.extent[turned], loops.src[last], loops.dst[turned]};
  const bool wide = planes.rows % kWide == 0 && planes.columns % kWide == 0 &&
                    pieces_fit(src, loops.src, loops.rank, turned, sizeof(Src)) &&
                    pieces_fit(dst, loops.dst, loops.rank, last, sizeof(Dst));
  constexpr int64_t kTile = kSide<Src>;
  int64_t tiles = (planes.rows + kTile - 1) / kTile;
  tiles *= (planes.columns + kTile - 1) / kTile;
  CopyLoops outer{};
  for (int axis = 0; axis < last; ++axis) {
    if (axis != turned) {
      outer.extent[outer.rank] = loops.extent[axis];
      outer.src[outer.rank] = loops.src[axis];
      outer.dst[outer.rank] = loops.dst[axis];
      tiles *= loops.extent[axis];
      ++outer.rank;
    }
  }
  gpu::launch(wide ? tiles_kernel<Src, Dst, kWide> : tiles_kernel<Src, Dst, 1>, dim3(gpu::blocks_for(tiles, 1)),
              dim3(kBlock), 0, context.stream(), outer, tiles, planes, src, dst);
}

template <class Src, class Dst>
void copy_of(CudaContext& context, const CopyLoops& loops, const TensorView& src, const TensorView& dst) {
  const int turned = turned_axis(loops);
  if (turned < 0) {
    copy_along_rows(context, loops, gpu::data<const Src>(src), gpu::data<Dst>(dst));
  } else {
    copy_turned(context, loops, turned, gpu::data<const Src>(src), gpu::data<Dst>(dst));
  }
}

void copy_same_type(CudaContext& context, const CopyLoops& loops, const TensorView& src, const TensorView& dst) {
  switch (size_of(src.dtype)) {
    case 1:
      return copy_of<std::uint8_t, std::uint8_t>(context, loops, src, dst);
    case 2:
      return copy_of<std::uint16_t, std::uint16_t>(context, loops, src, dst);
    case 4:
      return copy_of<std::uint32_t, std::uint32_t>(context, loops, src, dst);
    default:
      return copy_of<std::uint64_t, std::uint64_t>(context, loops, src, dst);
  }
}

template <class F>
void visit_floating(DType dtype, F&& f) {
  if (dtype == DType::f64) {
    f(std::type_identity<double>{});
  } else {
    gpu::visit_element(dtype, "strided_copy", f);
  }
}

}  // namespace

void strided_copy(CudaContext& context, const TensorView& src, const TensorView& dst) {
  if (src.numel() == 0) {
    return;
  }
  const CopyLoops loops = make_copy_loops(src, dst);
  if (src.dtype == dst.dtype) {
    copy_same_type(context, loops, src, dst);
  } else if (is_floating(src.dtype) && is_floating(dst.dtype)) {
    visit_floating(src.dtype, [&]<class Src>(std::type_identity<Src>) {
      visit_floating(dst.dtype, [&]<class Dst>(std::type_identity<Dst>) {
        if constexpr (!std::is_same_v<Src, Dst>) {
          copy_of<Src, Dst>(context, loops, src, dst);
        }
      });
    });
  } else {
    const int64_t count = src.numel();
    gpu::launch(mixed_kernel, dim3(gpu::blocks_for(count, kBlock)), dim3(kBlock), 0, context.stream(), loops, count,
                src.dtype, static_cast<const void*>(src.data), dst.dtype, dst.data);
  }
}

}  // namespace lockstep::ops::backend

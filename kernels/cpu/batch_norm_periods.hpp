#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// The loops of batch norm treat a tensor as one contiguous range in which the channels repeat with a period. A period
/// is one row of C channels, or several rows when C is small or not a multiple of 8. A loop takes one piece at a time:
/// up to four periods, and at most kBlock elements of each period. A piece is small enough for the first-level cache.
/// The inner loops are long and vectorise for any C. Every piece starts at a multiple of 8 elements, because one byte
/// of the mask holds the bits of 8 elements.
///
/// Loops marked `omp simd` may write in place, because element i of the output depends on element i of the inputs only.
///
/// T is the type of the tensor's elements; V and Value<T> are the type of statistics, coefficients and sums.
namespace lockstep::ops::batch_norm {

inline constexpr std::int64_t kPeriod = 128;  // least number of elements of a period in elementwise passes
inline constexpr std::int64_t kSumPeriod =
    32;                                      // a period of a pass that sums has a multiple of this number of elements
inline constexpr std::int64_t kBlock = 512;  // largest number of elements that a piece takes from one period
inline constexpr std::int64_t kMaxLocal = 2048;   // largest number of elements of a table on the stack
inline constexpr std::int64_t kTile = 4096;       // least number of elements that a thread takes at a time
inline constexpr std::int64_t kMinChunk = 16384;  // least number of elements of a chunk
inline constexpr std::int64_t kMinChunkRows = 32;
inline constexpr std::int64_t kMaxChunkRows = 256;  // largest number of rows of a chunk, unless kMinChunk requires more
inline constexpr std::int64_t kGrain = 16384;       // number of elements that justify another thread
inline constexpr std::size_t kSlotAlignment = 64;

/// Describes how a tensor is divided. A period is one or more rows, a tile the elements that a thread takes at a time,
/// and a chunk the elements that are summed together. The division depends on the shape and the pass only.
struct Layout {
  std::int64_t channels;
  std::int64_t rows_per_sample = 1;
  std::int64_t rows;
  std::int64_t fold = 1;  // number of rows in a period
  std::int64_t period;    // number of elements in a period: a multiple of 8 (of 32 in passes that sum)
  std::int64_t tile;      // number of elements in a tile: a multiple of four periods
  std::int64_t chunk;     // number of elements in a chunk: a multiple of the period
  std::int64_t chunks;

  enum class Pass : bool { elementwise, sums };
  explicit Layout(const Shape& shape, Pass pass = Pass::sums) : channels(shape.back()) {
    for (int axis = 1; axis + 1 < shape.rank(); ++axis) {
      rows_per_sample *= shape[axis];
    }
    rows = shape[0] * rows_per_sample;
    const std::int64_t least = pass == Pass::sums ? kSumPeriod : kPeriod;
    const std::int64_t unit = pass == Pass::sums ? kSumPeriod : 8;
    while (fold * channels < least || fold * channels % unit != 0) {
      fold *= 2;
    }
    period = fold * channels;
    tile = align_up(kTile, 4 * period);
    const std::int64_t chunk_rows = std::max(std::clamp(rows / 64, kMinChunkRows, kMaxChunkRows), kMinChunk / channels);
    chunk = align_up(chunk_rows, fold) * channels;
    chunks = (rows * channels + chunk - 1) / chunk;
  }

  [[nodiscard]] std::int64_t numel() const { return rows * channels; }
  [[nodiscard]] std::int64_t tiles() const { return (numel() + tile - 1) / tile; }
  [[nodiscard]] std::int64_t tile_grain() const { return std::max(std::int64_t{1}, kGrain / tile); }
  [[nodiscard]] std::int64_t chunk_grain() const { return std::max(std::int64_t{1}, kGrain / chunk); }
  [[nodiscard]] std::size_t joined_bytes() const { return static_cast<std::size_t>(channels) * 2 * sizeof(double); }
  /// Returns the bytes of a slot of the workspace. A slot holds (2, C) doubles for the sums of one chunk, then (3,
  /// period) values of scratch memory. A thread uses the scratch memory of its first chunk for all of its chunks.
  [[nodiscard]] std::size_t slot_bytes(std::size_t value) const {
    const std::size_t bytes = joined_bytes() + static_cast<std::size_t>(period) * 3 * value;
    return align_up(bytes, kSlotAlignment);
  }
};

struct Slots {
  std::byte* base;
  std::size_t joined_bytes;
  std::size_t slot_bytes;

  Slots(const Layout& layout, const TensorView& workspace, std::size_t value)
      : base(static_cast<std::byte*>(workspace.data)),
        joined_bytes(layout.joined_bytes()),
        slot_bytes(layout.slot_bytes(value)) {}
  [[nodiscard]] double* joined(std::int64_t chunk) const {
    return reinterpret_cast<double*>(base + static_cast<std::size_t>(chunk) * slot_bytes);
  }
  template <class T>
  [[nodiscard]] T* scratch(std::int64_t chunk) const {
    return reinterpret_cast<T*>(base + static_cast<std::size_t>(chunk) * slot_bytes + joined_bytes);
  }
};

/// Returns the number of rows of the valid samples. Throws ShapeError when `valid` is out of range.
inline std::int64_t valid_rows(std::string_view op, const Layout& layout, const TensorView& x,
                               const TensorView& valid) {
  if (!valid.given()) {
    return layout.rows;
  }
  const std::int64_t samples = *valid.as<std::int64_t>();
  require<ShapeError>(samples >= 0 && samples <= x.shape[0], op, ": valid is ", samples, ", expected 0 to ",
                      x.shape[0]);
  return samples * layout.rows_per_sample;
}

/// Calls f(periods, offset, phase, length) for the pieces of [begin, end). A period is one or more rows of the tensor.
/// A piece is `periods` (a compile-time 4 or 1) runs of `length` elements; the runs begin one period apart. `begin` is
/// a multiple of the period. The piece begins at `offset`, which is `phase` elements after the begin of its period.
template <class F>
void for_pieces(std::int64_t begin, std::int64_t end, std::int64_t period, F&& f) {
  const std::int64_t fours = begin + (end - begin) / (4 * period) * (4 * period);
  for (std::int64_t phase = 0; phase < period; phase += kBlock) {
    const std::int64_t length = std::min(kBlock, period - phase);
    for (std::int64_t at = begin + phase; at < fours; at += 4 * period) {
      f(std::integral_constant<int, 4>{}, at, phase, length);
    }
    for (std::int64_t at = fours + phase; at < end; at += period) {
      f(std::integral_constant<int, 1>{}, at, phase, std::min(length, end - at));
    }
  }
}

/// Adds up the values of each channel over one period: values (period), sums (C).
template <class T>
void fold_period(const T* values, const Layout& layout, double* sums) {
  std::fill_n(sums, layout.channels, 0.0);
  for (std::int64_t i = 0; i < layout.period; i += layout.channels) {
#pragma omp simd
    for (std::int64_t c = 0; c < layout.channels; ++c) {
      sums[c] += static_cast<double>(values[i + c]);
    }
  }
}

template <class T>
void repeat(const T* values, std::int64_t channels, std::int64_t phase, std::int64_t length, T* out) {
  std::int64_t c = phase % channels;
  for (std::int64_t i = 0; i < length; c = 0) {
    const std::int64_t run = std::min(channels - c, length - i);
    std::copy_n(values + c, run, out + i);
    i += run;
  }
}

/// A table of C values. A period is one or more rows of C channels; from() returns the values repeated for each row of
/// the period.
template <class T>
class RepeatedRow {
 public:
  RepeatedRow(const T* values, const Layout& layout) : values_(values), layout_(layout) {
    if (layout.fold > 1 && layout.period <= kMaxLocal) {
      repeat(values, layout.channels, 0, layout.period, local_);
    }
  }
  /// Returns the channels' values for `length` elements, from element `phase` of a period (one or more rows) on. The
  /// result is valid until the next call.
  const T* from(std::int64_t phase, std::int64_t length) {
    if (layout_.fold == 1) {
      return values_ + phase;
    }
    if (layout_.period <= kMaxLocal) {
      return local_ + phase;
    }
    repeat(values_, layout_.channels, phase, length, local_);
    return local_;
  }

 private:
  const T* values_;
  const Layout& layout_;
  alignas(64) T local_[kMaxLocal];
};

template <class T>
T* pointer(const TensorView& view) {
  return view.given() ? view.as<T>() : nullptr;
}

}  // namespace lockstep::ops::batch_norm

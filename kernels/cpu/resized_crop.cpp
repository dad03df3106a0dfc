#include <lockstep/kernels/resized_crop.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/kernels/images/resample.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr double kMostPixels = 1 << 27;  // largest number of pixels of a source image
constexpr double kFurthest = 2147483648.0;

/// A row of the table `parts`.
struct Part {
  const double* row;

  [[nodiscard]] double at(PartColumn column) const { return row[static_cast<std::size_t>(column)]; }
  [[nodiscard]] std::int64_t whole(PartColumn column) const { return static_cast<std::int64_t>(at(column)); }
};

bool is_whole(double value, double low, double high) {
  return value >= low && value <= high && value == std::floor(value);
}

bool is_axis(const Part& part, PartColumn begin, PartColumn step, PartColumn low, PartColumn high) {
  return is_whole(part.at(high), 1, kMostPixels) && is_whole(part.at(low), 0, part.at(high) - 1) &&
         std::abs(part.at(step)) <= kMostPixels && std::abs(part.at(begin)) <= kFurthest;
}

/// Returns true if two conditions hold: all numbers of `part` (a row of the table) are in their ranges; the part's
/// pixels, width * height * 3 bytes, are at most `bytes` bytes.
bool is_part(const Part& part, std::int64_t bytes) {
  using enum PartColumn;
  if (!is_whole(part.at(width), 1, kMostPixels) || !is_whole(part.at(height), 1, kMostPixels)) {
    return false;
  }
  const double pixels = part.at(width) * part.at(height);  // exact up to 2^53; larger products exceed kMostPixels
  return pixels <= kMostPixels && part.whole(width) * part.whole(height) * 3 <= bytes &&
         is_whole(part.at(left), 0, kMostPixels) && is_whole(part.at(top), 0, kMostPixels) &&
         is_whole(part.at(transposed), 0, 1) && is_axis(part, x_begin, x_step, x_low, x_high) &&
         is_axis(part, y_begin, y_step, y_low, y_high);
}

/// Returns true if the pixels that the first `outputs` outputs need are in [first, first + count).
bool covers(const images::Axis& axis, std::int64_t outputs, std::int64_t first, std::int64_t count) {
  const images::PixelRange needed = images::pixels_of(axis, outputs);
  return needed.begin >= first && needed.end <= first + count;
}

images::ResampleMemory& own_memory() {
  thread_local images::ResampleMemory memory;
  return memory;
}

/// Resamples a part of a source image into `image`. `given` holds the pixels, `bytes` bytes. Returns false when the row
/// of the table is not valid.
bool show(const Part& part, const std::uint8_t* given, std::int64_t bytes, const images::Extent& size,
          std::span<std::uint8_t> image) {
  using enum PartColumn;
  if (!is_part(part, bytes)) {
    return false;
  }
  const images::Axis x{part.at(x_begin), part.at(x_step), part.whole(x_low), part.whole(x_high)};
  const images::Axis y{part.at(y_begin), part.at(y_step), part.whole(y_low), part.whole(y_high)};
  const bool turned = part.at(transposed) == 1;
  if (!covers(x, turned ? size.height : size.width, part.whole(left), part.whole(width)) ||
      !covers(y, turned ? size.width : size.height, part.whole(top), part.whole(height))) {
    return false;
  }
  images::resample({part.whole(width), part.whole(height), given, part.whole(left), part.whole(top)}, x, y, size,
                   turned, own_memory(), image);
  return true;
}

}  // namespace

void resized_crop(CpuContext& context, const TensorView& pictures, const TensorView& parts, const TensorView& out) {
  const std::int64_t bytes = pictures.shape[1];
  const images::Extent size{out.shape[2], out.shape[1]};
  const std::int64_t image = size.height * size.width * 3;
  if (image == 0) {
    return;
  }
  const std::uint8_t* from = pictures.as<std::uint8_t>();  // shape (N, B)
  const double* table = parts.as<double>();                // shape (N, kPartColumns)
  const std::int64_t row = parts.strides[0];
  std::uint8_t* to = out.as<std::uint8_t>();  // shape (N, H, W, 3)
  parallel_ranges(context, pictures.shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::span shown(to + n * image, static_cast<std::size_t>(image));
      if (!show(Part{table + n * row}, from + n * bytes, bytes, size, shown)) {
        std::fill(shown.begin(), shown.end(), std::uint8_t{0});
      }
    }
  });
}

}  // namespace lockstep::ops::backend

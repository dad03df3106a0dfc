#include <lockstep/kernels/erase_and_mix.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include <lockstep/kernels/images/mix.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using images::Rectangle;

/// Returns `at` truncated to a whole number and clamped to [0, extent]. Returns 0 for NaN.
std::int64_t edge(double at, std::int64_t extent) {
  if (!(at > 0)) {
    return 0;
  }
  return at < static_cast<double>(extent) ? static_cast<std::int64_t>(at) : extent;
}

/// Returns the rectangle that a `row` of a table describes with its numbers left, top, right and bottom.
Rectangle rectangle_of(const double* row, std::int64_t height, std::int64_t width) {
  return {edge(row[0], width), edge(row[1], height), edge(row[2], width), edge(row[3], height)};
}

float share_of(double value) {
  if (!(value > 0)) {
    return 0;
  }
  return value < 1 ? static_cast<float>(value) : 1;
}

double column(const double* mixture, MixtureColumn column) {
  return mixture[static_cast<std::size_t>(column)];
}

/// Returns the intersection of two rectangles.
Rectangle both(const Rectangle& a, const Rectangle& b) {
  return {std::max(a.left, b.left), std::max(a.top, b.top), std::min(a.right, b.right), std::min(a.bottom, b.bottom)};
}

}  // namespace

void erase_and_mix(CpuContext& context, const std::array<std::uint8_t, 3>& fill, const TensorView& images,
                   const TensorView& erasures, const TensorView& mixtures, const TensorView& out) {
  const std::int64_t pictures = images.shape[1];
  const std::int64_t height = images.shape[2];
  const std::int64_t width = images.shape[3];
  const auto row_bytes = static_cast<std::size_t>(width * 3);
  const std::int64_t bytes = height * width * 3;                         // number of bytes of an image
  const auto* const from = images.as<const std::uint8_t>();              // shape (N, P, H, W, 3)
  const auto* const to_erase = erasures.as<const double>();              // shape (N, P, kErasureColumns)
  const auto* const to_mix = static_cast<const double*>(mixtures.data);  // shape (N, kMixtureColumns), or null
  auto* const to = out.as<std::uint8_t>();                               // shape (N, H, W, 3)
  parallel_ranges(context, bytes == 0 ? 0 : images.shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<std::uint8_t> row;  // one row of image 1 after erasing; the thread keeps this memory
    for (std::int64_t n = begin; n < end; ++n) {
      const std::uint8_t* const first = from + n * pictures * bytes;
      const std::uint8_t* const second = first + bytes;
      std::uint8_t* const image = to + n * bytes;
      const double* const erasure = to_erase + n * erasures.strides[0];
      if (image != first) {
        std::memcpy(image, first, static_cast<std::size_t>(bytes));
      }
      images::fill_rectangle(rectangle_of(erasure, height, width), width, fill, image);
      if (pictures == 1) {
        continue;
      }
      const Rectangle erased = rectangle_of(erasure + erasures.strides[1], height, width);
      const double* const mixture = to_mix + n * mixtures.strides[0];
      if (column(mixture, MixtureColumn::cut) == 1) {
        const Rectangle shown = rectangle_of(mixture + static_cast<std::size_t>(MixtureColumn::left), height, width);
        images::copy_rectangle(shown, width, second, image);
        images::fill_rectangle(both(shown, erased), width, fill, image);
        continue;
      }
      const float share = share_of(column(mixture, MixtureColumn::share));
      for (std::int64_t y = 0; y < height; ++y) {
        const std::uint8_t* other = second + y * width * 3;
        if (!erased.empty() && y >= erased.top && y < erased.bottom) {
          row.assign(other, other + row_bytes);
          images::fill_rectangle({erased.left, 0, erased.right, 1}, width, fill, row.data());
          other = row.data();
        }
        images::mix(share, {image + y * width * 3, row_bytes}, other);
      }
    }
  });
}

}  // namespace lockstep::ops::backend

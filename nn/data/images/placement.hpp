#pragma once

#include <cstdint>

#include <lockstep/nn/data/images/resample.hpp>

namespace lockstep::nn::images {

/// Shift and mirroring of an image: pixel (h, w) of the result shows pixel (h + row, w + column) of the image. If
/// `mirror` is true, w counts from the right edge of the result.
struct Placement {
  std::int64_t row = 0;
  std::int64_t column = 0;
  bool mirror = false;
};

/// Kind of pixels that are shown for positions outside an image.
enum class Outside : unsigned char {
  black,
  reflected  ///< pixels mirrored at the edge of the image; shifts must be smaller than the image's height and width
};

/// Writes the image `from`, placed at `at`, to `to`. Both images are (H, W, C) with the extents `size` and do not
/// overlap.
void show(const Extent& size, std::int64_t channels, const Placement& at, Outside outside, const std::uint8_t* from,
          std::uint8_t* to);

}  // namespace lockstep::nn::images

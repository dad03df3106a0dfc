#pragma once

#include <cstdint>

#include <lockstep/nn/data/images/resample.hpp>

namespace lockstep::nn::images {

/// Where an image is placed: pixel (h, w) of the result shows (h + row, w + column), with w counted from the right when
/// it is mirrored.
struct Placement {
  std::int64_t row = 0;
  std::int64_t column = 0;
  bool mirror = false;
};

/// What is shown from outside an image.
enum class Outside : unsigned char {
  black,
  reflected  ///< the image, reflected about its edge pixels; it moves by less than its height and width
};

/// from, to: (H, W, C) of `size`, without overlap.
void show(const Extent& size, std::int64_t channels, const Placement& at, Outside outside, const std::uint8_t* from,
          std::uint8_t* to);

}  // namespace lockstep::nn::images

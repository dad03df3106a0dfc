#pragma once

#include <array>

namespace lockstep::nn {

/// Limits of a random part of a picture, as in torchvision's RandomResizedCrop. The part is resized to an image.
struct CropOptions {
  std::array<double, 2> area{0.08, 1};            ///< least and most share of a picture's area, 0 < least <= most <= 1
  std::array<double, 2> ratio{3.0 / 4, 4.0 / 3};  ///< least and most width / height of the part, above 0
  bool operator==(const CropOptions&) const = default;
};

}  // namespace lockstep::nn

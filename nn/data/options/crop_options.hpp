#pragma once

#include <array>

namespace lockstep::nn {

/// Limits of the random part of a picture that is resized to an image, as in torchvision's RandomResizedCrop.
struct CropOptions {
  std::array<double, 2> area{0.08, 1};            ///< least and most share of the area, 0 < least <= most <= 1
  std::array<double, 2> ratio{3.0 / 4, 4.0 / 3};  ///< least and most width / height, above 0
  bool operator==(const CropOptions&) const = default;
};

}  // namespace lockstep::nn

#pragma once

#include <array>

namespace lockstep::nn {

/// The random parts of a picture that are resized to an image, as torchvision's RandomResizedCrop.
struct CropOptions {
  std::array<double, 2> area{0.08, 1};            ///< of the picture: least and most, 0 < least <= most <= 1
  std::array<double, 2> ratio{3.0 / 4, 4.0 / 3};  ///< width / height: least and most, above 0
  bool operator==(const CropOptions&) const = default;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/nn/data/images/resample.hpp>

namespace lockstep::nn::images {

/// The operations that TrivialAugment and RandAugment choose from, with torchvision's order and names ("ShearX").
enum class PictureOp : unsigned char {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize
};
inline constexpr int kPictureOps = 14;
[[nodiscard]] const char* name_of(PictureOp op);

/// Applies the operation `op` to the u8 image `image` (height, width, 3). The bytes equal those of torchvision for a u8
/// tensor (transforms/autoaugment.py: _apply_op):
///
///   shear_x                    pixel (x, y) of the result shows the pixel of row y that is nearest to
///                              x + magnitude * (y + 1/2); pixels outside the image are black
///   shear_y                    likewise, with rows and columns exchanged
///   translate_x (translate_y)  moves the image to the right (down) by `magnitude` pixels, cut off to an integer
///   rotate                     turns the image by `magnitude` degrees around its middle, counterclockwise
///   brightness                 blends with black, by the ratio 1 + magnitude
///   color, contrast, sharpness blend by the same ratio: color with the grey image, contrast with the mean grey value,
///                              sharpness with a blurred image
///   posterize                  keeps the upper `magnitude` bits
///   solarize                   inverts values that are not below `magnitude`
///   autocontrast, equalize     change each channel independently
///
/// Pillow, which torchvision calls for images that are not tensors, gives equal bytes with two exceptions. Some bytes
/// of color, contrast and sharpness differ by 1. Single pixels of a rotation differ: at a position midway between two
/// pixels, this function takes the right (lower) pixel, while in torchvision rounding errors decide.
///
/// `magnitude` must be finite, at least -1 for a blend, and 0 to 8 for posterize. The memory of `copy` is reused
/// between images.
void apply(PictureOp op, double magnitude, const Extent& size, std::span<std::uint8_t> image,
           std::vector<std::uint8_t>& copy);

}  // namespace lockstep::nn::images

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
///   shear       by `magnitude` pixels per row (column), from the upper left corner; nearest pixels, black outside
///   translate   by `magnitude` pixels to the right (down), without its fraction
///   rotate      by `magnitude` degrees around the middle, counterclockwise
///   brightness, color, contrast, sharpness   blends by 1 + magnitude with black, greys, the mean of the greys, a blur
///   posterize   keeps the upper `magnitude` bits; solarize: inverts values that are not below `magnitude`
///   autocontrast, equalize   change each channel independently
///
/// Pillow, which torchvision calls for images that are not tensors, gives equal bytes, with two exceptions. Some bytes
/// of color, contrast and sharpness differ by 1, and single pixels of a rotation differ. A position midway between two
/// pixels takes the right (lower) pixel here; in torchvision, rounding errors decide.
///
/// `magnitude` is finite, at least -1 for a blend, and 0 to 8 for posterize. The memory of `copy` is reused between
/// images.
void apply(PictureOp op, double magnitude, const Extent& size, std::span<std::uint8_t> image,
           std::vector<std::uint8_t>& copy);

}  // namespace lockstep::nn::images

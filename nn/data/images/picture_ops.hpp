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

/// Changes an image of bytes, (height, width, 3), as torchvision changes tensors of bytes
/// (transforms/autoaugment.py: _apply_op), to the same bytes:
///
///   shear       by this part of a pixel a row (a column), from the upper left corner; nearest pixels, black outside
///   translate   by so many whole pixels to the right (down); what is behind the point does not count
///   rotate      by so many degrees around the middle, counterclockwise
///   brightness, color, contrast, sharpness   blended by 1 + magnitude with black, greys, the mean of the greys, a blur
///   posterize   keeps so many upper bits; solarize: inverts values that are not below
///   autocontrast, equalize   each channel by itself
///
/// Pillow, which torchvision calls for pictures, gives the same bytes but for color, contrast and sharpness, where some
/// differ by 1, and single pixels of a turn. A position in the middle of two pixels is the one to the right (below),
/// where torchvision's depends on rounding.
///
/// magnitude: finite; of a blend at least -1, of posterize 0 to 8. copy: memory that stays for the next image.
void apply(PictureOp op, double magnitude, const Extent& size, std::span<std::uint8_t> image,
           std::vector<std::uint8_t>& copy);

}  // namespace lockstep::nn::images

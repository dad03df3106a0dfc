#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/nn/data/options/crop_options.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::images {

/// Part of a picture that becomes an image. `x` goes to the right and `y` down, in the picture after its EXIF
/// orientation is applied.
struct View {
  Axis x;
  Axis y;
};

/// Returns the part of a picture that an evaluation shows: the picture's shorter side is resized to `resize` and its
/// longer side in proportion, and the image is the middle `size` x `size` pixels of the result.
[[nodiscard]] View centre_crop(const Extent& picture, std::int64_t resize, std::int64_t size);

/// Draws the part of a picture that torchvision's RandomResizedCrop takes. Tries ten parts with a random area and a
/// random ratio of the sides. If none of the ten fits into the picture, returns the middle of the picture, with the
/// allowed ratio that is nearest to the picture's ratio.
[[nodiscard]] View random_crop(const Extent& picture, const Extent& image, const CropOptions& options, Random& random);

/// Throws UsageError if a field of `options` is out of range. The error text names the field.
void require_crop(const CropOptions& options);
/// Describes the options for the text that identifies a run, like "0.08 to 1 of the area, ratios 0.75 to
/// 1.3333333333333333". Numbers have all digits.
[[nodiscard]] std::string text_of(const CropOptions& options);

/// Returns the part `view` mirrored left to right. `width` is the width of the image.
[[nodiscard]] View mirrored(const View& view, std::int64_t width);

}  // namespace lockstep::nn::images

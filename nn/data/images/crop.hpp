#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/nn/data/options/crop_options.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::images {

/// What becomes an image, as a person sees the picture: an axis to the right and one down.
struct View {
  Axis x;
  Axis y;
};

/// The shorter side of the picture becomes `resize`, the longer one in proportion; size x size in the middle of both.
[[nodiscard]] View centre_crop(const Extent& picture, std::int64_t resize, std::int64_t size);

/// torchvision's RandomResizedCrop: ten tries of a part with a random area and ratio of its sides, else the middle of
/// the picture in the nearest ratio.
[[nodiscard]] View random_crop(const Extent& picture, const Extent& image, const CropOptions& options, Random& random);

/// UsageError naming what is out of range.
void require_crop(const CropOptions& options);
/// "0.08 to 1 of the area, ratios 0.75 to 1.3333333333333333": all digits, for the identity of a run
[[nodiscard]] std::string text_of(const CropOptions& options);

/// The same part from its right end. width: of the image.
[[nodiscard]] View mirrored(const View& view, std::int64_t width);

}  // namespace lockstep::nn::images

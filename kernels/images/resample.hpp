#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ops::images {

/// One axis of a resampling of a picture, the source image. Output i is the mean, under a triangle, of the pixels
/// around the middle of [begin + i * step, begin + (i + 1) * step), in pixels of the picture. A negative step mirrors.
/// Pixels outside of [low, high), which contains all those middles, do not exist.
struct Axis {
  double begin = 0;
  double step = 1;
  std::int64_t low = 0;
  std::int64_t high = 1;
};

/// Extents of an image in pixels.
struct Extent {
  std::int64_t width = 0;
  std::int64_t height = 0;
};

/// A view of pixels, (height, width, 3) u8, that it does not own: a whole picture, or the part of one that begins at
/// (top, left).
struct PixelView {
  std::int64_t width = 0;
  std::int64_t height = 0;
  const std::uint8_t* pixels = nullptr;
  std::int64_t left = 0;
  std::int64_t top = 0;
};

/// Pixels [begin, end) of an axis.
struct PixelRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Returns the range of all pixels under the first `outputs` outputs, at least one.
[[nodiscard]] PixelRange pixels_of(const Axis& axis, std::int64_t outputs);

/// Returns the axis as seen from the other end of `extent` pixels.
[[nodiscard]] Axis mirrored(const Axis& axis, std::int64_t extent);

/// Memory of resample() that can be used again for the next picture.
struct ResampleMemory {
  struct Taps {
    std::int64_t first = 0;  ///< the first pixel under the output
    std::size_t begin = 0;   ///< index of its first weight in `weights`
    std::size_t count = 0;
  };
  std::vector<Taps> taps_x;
  std::vector<Taps> taps_y;
  std::vector<float> weights;
  std::vector<float> across;  ///< weights along x, equally many for each output
  std::vector<float> line;    ///< the pixels of a row of the picture that are read, as floats
  std::vector<float> rows;
  std::vector<std::int32_t> row;
};

/// Resamples a picture, bilinear with antialiasing, as Pillow and torchvision (antialias=True) do it: the triangle is
/// as wide as the step, at least one pixel to each side. out: (size.height, size.width, 3), with its first index along
/// y; with `transposed` along x. Rounded once, to the nearest byte. The bits are the same on every machine. `picture`
/// has at least the pixels_of() both axes, which count from the whole picture's first pixel.
void resample(const PixelView& picture, const Axis& x, const Axis& y, const Extent& size, bool transposed,
              ResampleMemory& memory, std::span<std::uint8_t> out);

}  // namespace lockstep::ops::images

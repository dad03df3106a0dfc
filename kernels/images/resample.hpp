#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ops::images {

/// One axis of a resampling: output i is the mean, under a triangle, of the pixels around the middle of
/// [begin + i * step, begin + (i + 1) * step), in pixels of the picture. A negative step mirrors. Pixels outside of
/// [low, high), which holds all those middles, do not exist.
struct Axis {
  double begin = 0;
  double step = 1;
  std::int64_t low = 0;
  std::int64_t high = 1;
};

/// Pixels of a picture or an image.
struct Extent {
  std::int64_t width = 0;
  std::int64_t height = 0;
};

/// Pixels of somebody else, (height, width, 3) u8: a picture, or the part of one that begins at (top, left).
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
/// The pixels that `outputs` outputs are the means of, at least one output.
[[nodiscard]] PixelRange pixels_of(const Axis& axis, std::int64_t outputs);

/// What an axis means seen from the other end of `extent` pixels.
[[nodiscard]] Axis mirrored(const Axis& axis, std::int64_t extent);

/// Memory of resample() that stays for the next picture.
struct ResampleMemory {
  struct Taps {
    std::int64_t first = 0;  ///< pixel
    std::size_t begin = 0;   ///< in weights
    std::size_t count = 0;
  };
  std::vector<Taps> taps_x;
  std::vector<Taps> taps_y;
  std::vector<float> weights;
  std::vector<float> across;  ///< weights along x
  std::vector<float> line;    ///< the part of a picture's row that is read
  std::vector<float> rows;
  std::vector<std::int32_t> row;
};

/// Bilinear with antialiasing, as Pillow and torchvision (antialias=True) do it: the triangle is as wide as the step,
/// at least one pixel to each side. out (size.height, size.width, 3): first index along y; with `transposed` along x.
/// Rounded once, to the nearest. The bits are the same on every machine. `picture` has at least the pixels_of() both
/// axes, which count from the whole picture's first pixel.
void resample(const PixelView& picture, const Axis& x, const Axis& y, const Extent& size, bool transposed,
              ResampleMemory& memory, std::span<std::uint8_t> out);

}  // namespace lockstep::ops::images

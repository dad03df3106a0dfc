#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ops::images {

/// One axis of a resampling of a source image. Output i is a mean, weighted by a triangle, of the pixels around the
/// middle of [begin + i * step, begin + (i + 1) * step), in pixels of the source image. A negative step mirrors the
/// image. Only pixels in [low, high) are used; a middle outside of [low, high) is moved to the nearer end.
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

/// A view of pixels (height, width, 3) u8, without owning them: a whole source image, or the part of a source image
/// that begins at (top, left).
struct PixelView {
  std::int64_t width = 0;
  std::int64_t height = 0;
  const std::uint8_t* pixels = nullptr;
  std::int64_t left = 0;
  std::int64_t top = 0;
};

/// The pixels [begin, end) of an axis.
struct PixelRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Returns the range of all pixels that the first `outputs` outputs need; `outputs` is at least 1.
[[nodiscard]] PixelRange pixels_of(const Axis& axis, std::int64_t outputs);

/// Returns `axis` with pixels counted from the other end of the source image, which has `extent` pixels along the axis.
[[nodiscard]] Axis mirrored(const Axis& axis, std::int64_t extent);

/// Memory of resample() that can be used again for the next source image.
struct ResampleMemory {
  struct Taps {
    std::int64_t first = 0;  ///< first pixel that the output needs
    std::size_t begin = 0;   ///< index in `weights` of the first pixel's weight
    std::size_t count = 0;
  };
  std::vector<Taps> taps_x;
  std::vector<Taps> taps_y;
  std::vector<float> weights;
  std::vector<float> across;  ///< weights along x, padded with zeros to the same number for each output
  std::vector<float> line;    ///< those pixels of a row of the source image that the outputs need, as floats
  std::vector<float> rows;
  std::vector<std::int32_t> row;
};

/// Resamples a source image, bilinear with antialiasing, as Pillow and torchvision (antialias=True) do: the triangle of
/// weights extends by the step to each side, and by at least one pixel. out: (size.height, size.width, 3). The first
/// index of out runs along y of the source image, or along x if `transposed` is true. Each output is rounded once, to
/// the nearest byte. The bits are the same on every machine. `picture` must contain pixels_of() of both axes. The axes
/// count pixels from the first pixel of the whole source image.
void resample(const PixelView& picture, const Axis& x, const Axis& y, const Extent& size, bool transposed,
              ResampleMemory& memory, std::span<std::uint8_t> out);

}  // namespace lockstep::ops::images

#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The columns of the table `parts` of resized_crop(). A picture is a source image, an image is a result. The first
/// four columns say which rectangle of the picture is in memory ("given rectangle").
///
/// Output i along an axis, x or y, is a weighted mean of pixels around the middle of [begin + i * step, begin + (i + 1)
/// * step), in pixels of the picture. The weights form a triangle that extends by the step to each side, and by at
/// least one pixel: bilinear with antialiasing, as in Pillow and torchvision. A negative step mirrors the picture. Only
/// pixels in [low, high) are used.
enum class PartColumn : unsigned char {
  width,       ///< width of the given rectangle, in pixels
  height,      ///< height of the given rectangle, in pixels
  left,        ///< number of the picture's columns to the left of the given rectangle
  top,         ///< number of the picture's rows above the given rectangle
  transposed,  ///< 1 if the first index of the image (its row) runs along the picture's x axis, otherwise 0
  x_begin,     ///< begin of the interval of output 0 along x, in columns of the whole picture
  x_step,
  x_low,
  x_high,
  y_begin,
  y_step,
  y_low,
  y_high
};
inline constexpr std::int64_t kPartColumns = 13;

/// Resizes a part of picture n to image n, as row n of `parts` describes (PartColumn). The bits are the same on every
/// device (images::resample() of kernels/images).
///
///   pictures:   (N, B) u8, contiguous: row n begins with the given rectangle of picture n, (height, width, 3)
///   parts:      (N, 13) f64, one column for each PartColumn; any distance between rows
///   out:        (N, H, W, 3) u8, contiguous: the images; shares no byte with pictures or parts
///
/// A table on a device cannot be checked before the launch. Therefore an invalid row of `parts`, for example a row of
/// zeros, gives a black image instead of an error. A row is valid if all these conditions hold:
///   - width and height are whole numbers above 0; the rectangle has at most 2^27 pixels and fits into B bytes
///   - left and top are whole numbers from 0 to 2^27; transposed is 0 or 1
///   - for x and y: low and high are whole numbers, 0 <= low < high <= 2^27, -2^27 <= step <= 2^27,
///     and -2^31 <= begin <= 2^31
///   - the given rectangle includes all pixels that the image needs (images::pixels_of())
/// If the middle of an output's interval is outside of [low, high), the nearer end replaces the middle.
///
/// Throws ShapeError if H or W is above 4096. No workspace. On the host each thread keeps memory for the largest
/// picture that it has resized, until the thread ends.
void resized_crop(Context& context, const TensorView& pictures, const TensorView& parts, const TensorView& out);

namespace backend {  // the functions that resized_crop.cpp calls after its checks
LOCKSTEP_BACKENDS(resized_crop);
}  // namespace backend

}  // namespace lockstep::ops

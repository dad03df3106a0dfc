#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The columns of resized_crop()'s table: the rectangle of pixels of a picture that is given, and its two axes. A
/// picture is the source image, an image the result. Output i of an axis is the mean, under a triangle, of the pixels
/// around the middle of [begin + i * step, begin + (i + 1) * step), in pixels of the picture. A negative step mirrors.
/// Pixels outside of [low, high) do not exist. The triangle is as wide as the step, at least one pixel to each side:
/// bilinear with antialiasing, as Pillow and torchvision do it.
enum class PartColumn : unsigned char {
  width,       ///< width of the given pixels
  height,      ///< height of the given pixels
  left,        ///< column of the picture at which the given pixels begin
  top,         ///< row of the picture at which they begin
  transposed,  ///< 1: the image's first index runs along x; else 0
  x_begin,     ///< x runs along the picture's width, and counts from its first pixel, given or not
  x_step,
  x_low,
  x_high,
  y_begin,
  y_step,
  y_low,
  y_high
};
inline constexpr std::int64_t kPartColumns = 13;

/// out[n] = the part parts[n] of pictures[n], resized, with the same bits on every device (images::resample() of
/// kernels/images).
///
///   pictures:   (N, B) u8, contiguous: a row begins with pixels of a picture, (height, width, 3)
///   parts:      (N, 13) f64, a column for each PartColumn; rows may lie any distance apart
///   out:        (N, H, W, 3) u8, contiguous; shares no byte with an input
///
/// An image is black where its row of `parts` is not valid, as a table on a device cannot be refused. A row is valid
/// when width and height are whole numbers above 0, with at most 2^27 pixels that fit into B; left and top whole
/// numbers from 0 to 2^27; transposed 0 or 1; and for each axis low and high are whole numbers, 0 <= low < high <=
/// 2^27, -2^27 <= step <= 2^27, -2^31 <= begin <= 2^31, and the pixels under the image (images::pixels_of()) are given.
/// So a row of zeros is black. A middle outside of [low, high) is moved to the nearer end. ShapeError: H or W is above
/// 4096. No workspace; on the host each thread keeps memory for the largest picture that it has resized, until the
/// thread ends.
void resized_crop(Context& context, const TensorView& pictures, const TensorView& parts, const TensorView& out);

namespace backend {  // called after the checks of resized_crop.cpp
LOCKSTEP_BACKENDS(resized_crop);
}  // namespace backend

}  // namespace lockstep::ops

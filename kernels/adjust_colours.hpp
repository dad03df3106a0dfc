#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The kind of a colour change, a number in the table `changes` of adjust_colours(). Brightness, contrast and
/// saturation take a factor of 0 or more; factor 1 changes nothing. Hue takes a fraction of the colour circle, -0.5 to
/// 0.5. Each change does the same as torchvision's function, such as torchvision.transforms.functional.adjust_hue. Any
/// other number in the table, and NaN, means none.
enum class ColourKind : std::uint8_t { none = 0, brightness = 1, contrast = 2, saturation = 3, hue = 4 };

inline constexpr std::int64_t kColourChanges = 4;                   ///< number of changes of each image
inline constexpr std::int64_t kColourColumns = 2 * kColourChanges;  ///< columns of `changes`: kind, factor, kind, ..
inline constexpr std::int64_t kMostColourPixels = (1LL << 31) - 1;  ///< largest number of pixels of an image

/// Changes the colours of each image by the image's own list of changes. On every device the result has the bits of
/// images::adjust_colours() (kernels/images).
///
///   images:    (N, H, W, 3) u8, contiguous, changed in place; at most kMostColourPixels pixels an image
///   changes:   (N, kColourColumns) f64: four pairs of a ColourKind and a factor, applied one after the other; stride 1
///              within a row, any stride from row to row
///   workspace: (N) i64, contiguous; a GPU stores the sum of the grey values of each image in it
/// An image may have one change of kind contrast; a second contrast counts as none. If all changes of an image are
/// none, the image keeps its bytes. Factors are not checked: if a factor is NaN, infinite or out of range, the bytes of
/// its image are undefined, but other images are not affected. Views must not overlap.
///
/// On the host each thread changes one image at a time, and keeps a buffer of 12 bytes per pixel until the thread ends.
void adjust_colours(Context& context, const TensorView& images, const TensorView& changes, const TensorView& workspace);

namespace backend {  // the functions that adjust_colours.cpp calls after its checks
LOCKSTEP_BACKENDS(adjust_colours);
}  // namespace backend

}  // namespace lockstep::ops

#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// A change of colour, as a number in a table. Brightness, contrast and saturation take a factor of 0 or more (1
/// changes nothing), hue a part of the circle, -0.5 to 0.5; each does what its function in
/// torchvision.transforms.functional does. Any other number, and NaN, is none.
enum class ColourKind : std::uint8_t { none = 0, brightness = 1, contrast = 2, saturation = 3, hue = 4 };

inline constexpr std::int64_t kColourChanges = 4;                   ///< changes in the list of an image
inline constexpr std::int64_t kColourColumns = 2 * kColourChanges;  ///< columns of a table: kind, factor, kind, ..
inline constexpr std::int64_t kMostColourPixels = (1LL << 31) - 1;  ///< most pixels of an image

/// Changes the colours of images, each image by a list of its own, with the same bits on every device
/// (images::adjust_colours() of kernels/images).
///
///   images:    (N, H, W, 3) u8, contiguous, changed in place; at most kMostColourPixels pixels an image
///   changes:   (N, kColourColumns) f64: four pairs of a ColourKind and a factor, applied one after the other; stride 1
///              within a row, any stride from row to row
///   workspace: (N) i64, contiguous: sums of greys, on a GPU
/// A list may have one contrast; a second one counts as none. An image whose list is empty keeps its bytes. Factors are
/// not checked: one that is NaN, infinite or out of range gives its image any bytes, and changes no other image. No
/// views overlap. On the host an image is one thread's work, and each thread keeps 12 bytes for every pixel of an image
/// until it ends. On a GPU an image with a contrast is read twice.
void adjust_colours(Context& context, const TensorView& images, const TensorView& changes, const TensorView& workspace);

namespace backend {  // called after the checks of adjust_colours.cpp
LOCKSTEP_BACKENDS(adjust_colours);
}  // namespace backend

}  // namespace lockstep::ops

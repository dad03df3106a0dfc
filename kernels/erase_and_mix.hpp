#pragma once

#include <array>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Indices of the columns of the table `mixtures` of erase_and_mix().
enum class MixtureColumn : std::uint8_t { cut = 0, share = 1, left = 2, top = 3, right = 4, bottom = 5 };

inline constexpr std::int64_t kErasureColumns = 4;  ///< number of columns of erasures: left, top, right, bottom
inline constexpr std::int64_t kMixtureColumns = 6;  ///< number of columns of mixtures: see MixtureColumn

/// Random erasing, mixup and cutmix: fills rectangles of images, and mixes two images. The caller draws the random
/// numbers. P is the number of images of a sample, 1 or 2.
///
///   images:     (N, P, H, W, 3) u8, contiguous; at most 2^31 - 1 pixels an image
///   erasures:   (N, P, 4) f64: the rectangle [left, right) x [top, bottom) of an image becomes `fill`, unless empty
///   mixtures:   (N, 6) f64, one row per sample, columns as in MixtureColumn; given only if P is 2
///   out:        (N, H, W, 3) u8, contiguous; if P is 1, it may be `images`
/// If P is 1, out is the erased image. If P is 2, both images of a sample are erased and then mixed. If column `cut` of
/// the sample is 1, out shows image 1 in the rectangle of `mixtures`, and image 0 elsewhere; otherwise
///   out = floor(share * image 0 + (1 - share) * image 1 + 0.5)
/// in f32, where share is rounded to f32 and each operation is rounded separately. The bits are the same on every
/// device.
///
/// Values of the tables are not checked: rectangles are clipped at the image's edges, fractions of a pixel are dropped,
/// a share is clamped to [0, 1], and a NaN counts as 0. Apart from out = `images`, views must not overlap. No
/// workspace. On the host each thread keeps memory for one row of an image until the thread ends.
void erase_and_mix(Context& context, const std::array<std::uint8_t, 3>& fill, const TensorView& images,
                   const TensorView& erasures, const TensorView& mixtures, const TensorView& out);

namespace backend {  // the functions that erase_and_mix.cpp calls after its checks
LOCKSTEP_BACKENDS(erase_and_mix);
}  // namespace backend

}  // namespace lockstep::ops

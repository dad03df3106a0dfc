#pragma once

#include <array>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Options of augment(), which prepares the images of a batch in one pass over the pixels.
struct AugmentDesc {
  /// Number of pixels added on each side before a random crop of the image's size. The added pixels are 0 in the raw
  /// image, or, if `reflect` is on, pixels of the image's mirror image.
  std::int64_t pad = 0;
  bool flip = false;  ///< images are mirrored left to right with probability 1/2
  /// Makes flips alternate (needs `flip`). Each sample is mirrored either in the even epochs or in the odd epochs, with
  /// probability 1/2 each, so two successive epochs show both sides. Source: Jordan 2024, "94% on CIFAR-10 in 3.29
  /// Seconds on a Single GPU", section 3.6.
  bool alternate = false;
  bool reflect = false;         ///< added pixels are the image mirrored about its edge pixels: pixel -1 equals pixel 1
  std::array<float, 3> mean{};  ///< mean of value / 255 for each channel; `std` holds the standard deviations
  std::array<float, 3> std{1, 1, 1};
  std::uint64_t seed = 0;
};

/// Computes out[n, h, w, c] = (crop_flip(images[n])[h, w, c] / 255 - mean[c]) / std[c].
///
///   images:     (N, H, W, 3) u8, contiguous              sample_ids: (N) i64: position of the sample in its data set
///   epoch:      i64 scalar                               valid: i64 scalar or not given
///   out:        (N, H, W, C), f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU; C is 3 or 4; channel 3 is zero;
///               samples with index `valid` and above are all zero
/// Pixels that `pad` adds are 0 before normalisation, or are mirror images if `reflect` is on. In f32 the bits are the
/// same on every device. No workspace.
///
/// Each sample has its own generator, Random(seed, RandomUse::augment, epoch, sample id). Hence crop and flip do not
/// depend on thread, rank or position in the batch. The draws are, in this order: below(2 * pad + 1) for the row
/// offset, below(2 * pad + 1) for the column offset, below(2) for the flip. Numbers that are not needed are not drawn.
/// An alternating flip is drawn from a generator with epoch -1, and inverted in odd epochs.
///
/// Throws UsageError in three cases: pad is below 0 or above 2^30; `reflect` is on and pad is not below height and
/// width; a mean or std is not finite, or a std is not above 0.
void augment(Context& context, const AugmentDesc& desc, const TensorView& images, const TensorView& sample_ids,
             const TensorView& epoch, const TensorView& valid, const TensorView& out);

namespace backend {  // the functions that augment.cpp calls after its checks
LOCKSTEP_BACKENDS(augment);
}  // namespace backend

}  // namespace lockstep::ops

#pragma once

#include <vector>

#include <lockstep/nn/data/images/picture_ops.hpp>
#include <lockstep/nn/data/options/auto_augment_policy.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::images {

/// An operation that was drawn for an image, and its magnitude.
struct Chosen {
  PictureOp op = PictureOp::identity;
  double magnitude = 0;
  bool operator==(const Chosen&) const = default;
};

inline constexpr int kMagnitudes = 31;
/// Returns the magnitude that torchvision uses for the operation `op` at the strength `bin` (0 to 30), rounded to a
/// float. Returns 0 for an operation without a magnitude. `size` is the size of the image; RandAugment's translations
/// depend on it.
[[nodiscard]] double magnitude_of(AutoAugment policy, PictureOp op, int bin, const Extent& size);
/// Returns true for operations whose magnitude may be negative: shears, translations, turns and blends.
[[nodiscard]] bool has_sign(PictureOp op);

/// Draws the operations for an image, in the order in which they are applied. All operations are equally likely, and
/// both signs of a magnitude are equally likely.
[[nodiscard]] std::vector<Chosen> choose(AutoAugment policy, const Extent& size, Random& random);

}  // namespace lockstep::nn::images

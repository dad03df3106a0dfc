#pragma once

#include <vector>

#include <lockstep/nn/data/images/picture_ops.hpp>
#include <lockstep/nn/data/options/auto_augment_policy.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::images {

/// An operation and its magnitude.
struct Chosen {
  PictureOp op = PictureOp::identity;
  double magnitude = 0;
  bool operator==(const Chosen&) const = default;
};

inline constexpr int kMagnitudes = 31;
/// Returns torchvision's magnitude of an operation at `bin`, 0 to 30, with the precision of a float, or 0 for
/// operations without a magnitude. `size` is the size of the image, which decides how far RandAugment translates.
[[nodiscard]] double magnitude_of(AutoAugment policy, PictureOp op, int bin, const Extent& size);
/// True for operations whose magnitude may be negative: shears, translations, turns and blends.
[[nodiscard]] bool has_sign(PictureOp op);

/// Draws the operations for an image, in the order in which they are applied. All operations are equally likely, and so
/// are both signs of a magnitude.
[[nodiscard]] std::vector<Chosen> choose(AutoAugment policy, const Extent& size, Random& random);

}  // namespace lockstep::nn::images

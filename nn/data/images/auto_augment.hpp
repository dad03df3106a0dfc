#pragma once

#include <vector>

#include <lockstep/nn/data/images/picture_ops.hpp>
#include <lockstep/nn/data/options/auto_augment_policy.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::images {

/// An operation and how much of it.
struct Chosen {
  PictureOp op = PictureOp::identity;
  double magnitude = 0;
  bool operator==(const Chosen&) const = default;
};

inline constexpr int kMagnitudes = 31;
/// torchvision's magnitude of an operation at `bin`, 0 to 30, a number of type float; 0 of operations without one.
/// size: of the image, which decides how far RandAugment moves it.
[[nodiscard]] double magnitude_of(AutoAugment policy, PictureOp op, int bin, const Extent& size);
/// Shears, translations, turns and blends go either way.
[[nodiscard]] bool has_sign(PictureOp op);

/// What an image goes through, in this order: all operations equally often, either way equally often.
[[nodiscard]] std::vector<Chosen> choose(AutoAugment policy, const Extent& size, Random& random);

}  // namespace lockstep::nn::images

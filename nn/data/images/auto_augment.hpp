#pragma once

#include <string>
#include <vector>

#include <lockstep/nn/data/images/picture_ops.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn {

/// How operations are chosen for an image.
enum class AutoAugment : unsigned char {
  none,
  /// One operation with one of 31 magnitudes: Mueller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art
  /// Data Augmentation" (2021), torchvision's TrivialAugmentWide.
  trivial,
  /// Two operations, each with magnitude 9 of 0 to 30: Cubuk et al., "RandAugment: Practical automated data
  /// augmentation with a reduced search space" (2020), torchvision's RandAugment.
  rand
};
/// Of "none", "trivial" and "rand". UsageError for other names.
[[nodiscard]] AutoAugment parse_auto_augment(const std::string& name);

namespace images {

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

}  // namespace images
}  // namespace lockstep::nn

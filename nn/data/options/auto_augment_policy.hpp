#pragma once

#include <string>

namespace lockstep::nn {

/// Policy of automatic augmentation, which chooses the operations for an image.
enum class AutoAugment : unsigned char {
  none,
  /// One operation with one of 31 magnitudes: Mueller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art
  /// Data Augmentation" (2021), torchvision's TrivialAugmentWide.
  trivial,
  /// Two operations, each with magnitude 9 of 0 to 30: Cubuk et al., "RandAugment: Practical automated data
  /// augmentation with a reduced search space" (2020), torchvision's RandAugment.
  rand
};
/// Returns the policy whose name is `name`: "none", "trivial" or "rand". Throws UsageError for another name.
[[nodiscard]] AutoAugment parse_auto_augment(const std::string& name);

}  // namespace lockstep::nn

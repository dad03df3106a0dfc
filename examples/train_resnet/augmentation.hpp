#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/kernels/augment.hpp>
#include <lockstep/nn/data/augmented_images.hpp>

namespace lockstep {
class Schema;
}

namespace train_resnet {

/// The options of random pictures, as given.
struct AugmentationFlags {
  std::vector<double> crop_scale;  ///< least and most part of the area; none: torchvision's, and of folders only
  std::vector<double> crop_ratio;  ///< least and most width / height; none: torchvision's
  std::string auto_augment = "none";
  std::vector<double> color_jitter;  ///< brightness, contrast, saturation, hue; or none
  double random_erase = 0;
  double mixup = 0;
  double cutmix = 0;
  std::string pictures = "host";  ///< where pictures become images: nn::PicturesOn
  std::string show_batch;         ///< PNG file; empty: train
};

/// The group Augmentation.
void describe(lockstep::Schema& schema, AugmentationFlags& flags);

/// UsageError naming the option and what was expected. pad: as given, -1 for the default.
void require_augmentation_flags(const AugmentationFlags& flags, bool of_folder, std::int64_t pad,
                                const lockstep::nn::TrainingOptions& training);

/// The random parts that pictures of a folder are taken of.
[[nodiscard]] lockstep::nn::CropOptions crop_of(const AugmentationFlags& flags);

/// What is done on the host. on_device: padding and mirror of the data set, which move to the host beside anything
/// else; and the mean that erased rectangles are filled with.
[[nodiscard]] lockstep::nn::AugmentationOptions augmentation_of(const AugmentationFlags& flags, bool of_folder,
                                                                const lockstep::ops::AugmentDesc& on_device,
                                                                std::uint64_t seed);

}  // namespace train_resnet

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

/// The options of augmentation, as given on the command line.
struct AugmentationFlags {
  std::vector<double> crop_scale;  ///< range of the crop's share of the area; empty: torchvision's (folders only)
  std::vector<double> crop_ratio;  ///< smallest and largest width / height; empty: torchvision's values
  std::string auto_augment = "none";
  std::vector<double> color_jitter;  ///< brightness, contrast, saturation, hue; empty: no jitter
  double random_erase = 0;
  double mixup = 0;
  double cutmix = 0;
  std::string pictures = "host";  ///< place that decodes, resizes and augments images: a name of nn::PicturesOn
  std::string show_batch;         ///< PNG file to write instead of training; empty: train
};

/// Adds the options of the group Augmentation.
void describe(lockstep::Schema& schema, AugmentationFlags& flags);

/// Throws a UsageError with the option and the expected value if the options are invalid together. pad: as given, -1
/// for the default.
void require_augmentation_flags(const AugmentationFlags& flags, bool of_folder, std::int64_t pad,
                                const lockstep::nn::TrainingOptions& training);

/// Returns the sizes of the random crops of pictures.
[[nodiscard]] lockstep::nn::CropOptions crop_of(const AugmentationFlags& flags);

/// Returns the augmentation on the host. on_device: the padding and mirroring of the data set, which the host does if
/// there is any other augmentation; and the mean, the colour of erased rectangles.
[[nodiscard]] lockstep::nn::AugmentationOptions augmentation_of(const AugmentationFlags& flags, bool of_folder,
                                                                const lockstep::ops::AugmentDesc& on_device,
                                                                std::uint64_t seed);

}  // namespace train_resnet

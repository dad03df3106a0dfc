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
  std::vector<double> crop_scale;  ///< smallest and largest crop area / image area; empty: torchvision's (folders only)
  std::vector<double> crop_ratio;  ///< smallest and largest width / height of a crop; empty: torchvision's
  std::string auto_augment = "none";
  std::vector<double> color_jitter;  ///< changes of brightness, contrast, saturation and hue; empty: none
  double random_erase = 0;
  double mixup = 0;
  double cutmix = 0;
  std::string pictures = "host";  ///< place that decodes, resizes and augments images: a name of nn::PicturesOn
  std::string show_batch;         ///< path of a PNG file to write instead of training; empty: the program trains
};

/// Adds the options of augmentation to `schema`, which writes their values to `flags`.
void describe(lockstep::Schema& schema, AugmentationFlags& flags);

/// Throws a UsageError with the option and the expected value if options do not fit together. `of_folder` is true for
/// encoded images; `pad` is the value of --pad, or -1 for the default.
void require_augmentation_flags(const AugmentationFlags& flags, bool of_folder, std::int64_t pad,
                                const lockstep::nn::TrainingOptions& training);

/// Returns the ranges of the areas and shapes of random crops that `flags` request.
[[nodiscard]] lockstep::nn::CropOptions crop_of(const AugmentationFlags& flags);

/// Returns the augmentation that the host does. `on_device` has the data set's padding, mirroring and mean. If the host
/// has any other augmentation to do, it also pads and mirrors. Erased rectangles get the mean as their colour.
[[nodiscard]] lockstep::nn::AugmentationOptions augmentation_of(const AugmentationFlags& flags, bool of_folder,
                                                                const lockstep::ops::AugmentDesc& on_device,
                                                                std::uint64_t seed);

}  // namespace train_resnet

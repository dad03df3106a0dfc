#include "augmentation.hpp"

#include <algorithm>
#include <cstddef>

#include <lockstep/kernels/images/colour.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace train_resnet {

namespace nn = lockstep::nn;
using lockstep::require;
using lockstep::UsageError;

void describe(lockstep::Schema& schema, AugmentationFlags& flags) {
  schema.group("Augmentation of training images");
  schema
      .add("crop_scale", flags.crop_scale,
           "random crops of LEAST to MOST of the image's area, resized to the image size: two numbers LEAST,MOST; "
           "default: 0.08,1 with --data folder, list or packed, otherwise padding (--pad)")
      .instead_of("pad");
  schema
      .add("crop_ratio", flags.crop_ratio,
           "width / height of the random crops of --crop-scale: two numbers LEAST,MOST; default: 3/4 to 4/3")
      .instead_of("pad");
  schema
      .add("auto_augment", flags.auto_augment,
           "random operations on training images: trivial, rand or none; trivial: one operation of random strength, as "
           "torchvision's TrivialAugmentWide (ta_wide); rand: two operations, as RandAugment (ra)")
      .looks_like("NAME")
      .is_common();
  schema.add("color_jitter", flags.color_jitter,
             "largest random change of brightness, contrast, saturation and hue: four numbers B,C,S,H as in "
             "torchvision's ColorJitter, e.g. 0.4,0.4,0.4,0.1");
  schema.add(
      "random_erase", flags.random_erase,
      "probability that a rectangle of an image is filled with the mean colour, as in torchvision's RandomErasing");
  schema.add("mixup", flags.mixup,
             "alpha of mixup; the share of an image in its mixture with another image is drawn from Beta(alpha, "
             "alpha); 0: no mixup");
  schema.add("cutmix", flags.cutmix,
             "alpha of cutmix; a rectangle of another image covers the image, and the share of the area outside the "
             "rectangle is drawn from Beta(alpha, alpha); 0: no cutmix; with --mixup each image gets one of the two, "
             "with equal probability");
  schema
      .add("pictures", flags.pictures,
           "place where pictures are resized, recoloured, erased and mixed; host: the loader's threads; device: "
           "kernels of the rank's device, with equal bits; nvjpeg: as device, and the GPU decodes JPEG files, to "
           "pixels that differ a little")
      .looks_like("host|device|nvjpeg");
  schema
      .add("show_batch", flags.show_batch,
           "write the first training images, as the network sees them, to this PNG file, and end the program")
      .looks_like("PATH")
      .of_this_start();
}

void require_augmentation_flags(const AugmentationFlags& flags, bool of_folder, std::int64_t pad,
                                const nn::TrainingOptions& training) {
  const auto count = [](const char* name, const std::vector<double>& values, std::size_t expected) {
    require<UsageError>(values.empty() || values.size() == expected, name, " has ", values.size(),
                        values.size() == 1 ? " number" : " numbers", ", expected ", expected);
  };
  count("--crop-scale", flags.crop_scale, 2);
  count("--crop-ratio", flags.crop_ratio, 2);
  count("--color-jitter", flags.color_jitter, 4);
  require<UsageError>((flags.crop_scale.empty() && flags.crop_ratio.empty()) || pad == -1,
                      flags.crop_scale.empty() ? "--crop-ratio" : "--crop-scale", " with --pad ", pad,
                      ", expected one of the two");
  require<UsageError>(of_folder || !flags.crop_scale.empty() || flags.crop_ratio.empty(),
                      "--crop-ratio without --crop-scale, expected both, or --data folder:DIR");
  nn::AugmentationOptions options = augmentation_of(flags, false, {}, 0);
  options.crop = crop_of(flags);
  require_augmentation(options);
  (void)nn::parse_pictures_on(flags.pictures);
  require<UsageError>(flags.show_batch.empty() || training.evaluate.empty(), "--show-batch is ", flags.show_batch,
                      " with --evaluate, expected a run that trains");
  require<UsageError>(flags.show_batch.empty() || nn::images::available(), "--show-batch is ", flags.show_batch,
                      ", and this build writes no PNG files, expected one that does: install libjpeg-turbo and libpng "
                      "and configure with -DLOCKSTEP_IMAGES=ON");
}

nn::CropOptions crop_of(const AugmentationFlags& flags) {
  nn::CropOptions crop;
  std::copy(flags.crop_scale.begin(), flags.crop_scale.end(), crop.area.begin());
  std::copy(flags.crop_ratio.begin(), flags.crop_ratio.end(), crop.ratio.begin());
  return crop;
}

nn::AugmentationOptions augmentation_of(const AugmentationFlags& flags, bool of_folder,
                                        const lockstep::ops::AugmentDesc& on_device, std::uint64_t seed) {
  nn::AugmentationOptions options{.automatic = nn::parse_auto_augment(flags.auto_augment),
                                  .erase = flags.random_erase,
                                  .mixup = flags.mixup,
                                  .cutmix = flags.cutmix,
                                  .seed = seed};
  if (!of_folder && !flags.crop_scale.empty()) {
    options.crop = crop_of(flags);
  }
  options.pad = options.crop ? 0 : on_device.pad;
  options.reflect = on_device.reflect;
  options.flip = on_device.flip;
  options.alternate = on_device.alternate;
  if (!flags.color_jitter.empty()) {
    options.jitter = {flags.color_jitter[0], flags.color_jitter[1], flags.color_jitter[2], flags.color_jitter[3]};
  }
  for (std::size_t c = 0; c < 3; ++c) {
    options.fill[c] = lockstep::ops::images::byte_of(std::clamp(on_device.mean[c], 0.0F, 1.0F));
  }
  return options;
}

}  // namespace train_resnet

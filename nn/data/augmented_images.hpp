#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/options/auto_augment_policy.hpp>

/// Steps that augment a training image in an epoch, in the order of torchvision's recipes:
///
///     picture -> a random part, resized to the image's size   `crop`, or FolderOptions for folder:DIR
///             or padding, then a random crop                  `pad`
///             -> mirrored                                     `flip`
///             -> TrivialAugment, RandAugment                  `automatic`
///             -> colours changed                              JitterOptions
///             -> a rectangle erased                           `erase`
///             -> mixed with another sample                    `mixup`, `cutmix`
///     -> u8 (H, W, 3), which the device normalises (ops::augment with pad 0 and no flip)
///
/// The loader's threads do all steps, or only the steps before the colours; a device then does the remaining steps
/// (Dataset::device_preprocessing()). If no step except `pad` and `flip` is on, ops::augment can do these two steps
/// instead, with the same random draws.
///
/// Each step draws its own numbers from Random(seed, augment, epoch, sample). So an augmented image does not depend on
/// the number of ranks, of threads or of samples per batch. Switching a step on does not change the draws of the other
/// steps.
///
/// The partner of a mixed sample is drawn from the whole set, not from the batch, and is augmented with its own draws
/// of the epoch. So the loader decodes two pictures for each mixed sample. A mixed sample has two labels, each with a
/// share. Test images are not augmented: folder:DIR resizes a test image and takes the middle part.
namespace lockstep::nn {

/// Strengths of torchvision's ColorJitter, which changes brightness, contrast, saturation and hue in random order.
/// Brightness, contrast and saturation are each multiplied by a random factor from max(0, 1 - v) to 1 + v, where v is
/// the field of the same name. The hue is turned by a random fraction of the colour circle, from -hue to hue; `hue` is
/// at most 0.5, half of the circle.
struct JitterOptions {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  [[nodiscard]] bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct AugmentationOptions {
  std::optional<CropOptions> crop{};  ///< limits of a random part that is resized to the image's size; `pad` must be 0
  std::int64_t pad = 0;               ///< pixels added on each side; a random crop then restores the size
  bool reflect = false;               ///< true: added pixels reflect the image at its edge pixels; false: black pixels
  bool flip = false;                  ///< true: mirrors the image left to right with probability 1/2
  bool alternate = false;             ///< true: `flip` mirrors in every other epoch (ops::AugmentDesc::alternate)
  AutoAugment automatic = AutoAugment::none;
  JitterOptions jitter{};
  /// Probability that a rectangle of an image is erased (torchvision's RandomErasing). The rectangle has 2 to 33 % of
  /// the image's area, and the ratio of its sides is 3:10 to 10:3.
  double erase = 0;
  std::array<std::uint8_t, 3> fill{};  ///< colour of an erased rectangle; the mean colour becomes 0 when normalised
  /// Parameter alpha of mixup (Zhang et al. 2017); 0: no mixup. A sample's share is drawn from Beta(alpha, alpha).
  double mixup = 0;
  /// Parameter alpha of cutmix (Yun et al. 2019); 0 switches cutmix off. In a random rectangle, the image shows the
  /// image of a second sample. The share of the area outside the rectangle is drawn from Beta(alpha, alpha). If mixup
  /// is on as well, each sample gets either mixup or cutmix, with probability 1/2.
  double cutmix = 0;
  std::uint64_t seed = 0;

  /// Returns true if these options switch on a step that ops::augment cannot do: any step except `pad` and `flip`.
  [[nodiscard]] bool any() const {
    return crop.has_value() || automatic != AutoAugment::none || jitter.any() || erase > 0 || mixes();
  }
  [[nodiscard]] bool mixes() const { return mixup > 0 || cutmix > 0; }
};

/// Throws UsageError if a field of `options` is out of range. The error text names the value and the expected range.
void require_augmentation(const AugmentationOptions& options);
/// Describes the steps that are on, for messages and for the text that identifies a run. An example is "colour jitter
/// 0.4 0.4 0.4 0.1, erased with probability 0.25". Numbers have all digits. `seed` and `fill` are not in the text. If
/// no step is on, the text is empty.
[[nodiscard]] std::string text_of(const AugmentationOptions& options);

/// Owns a set of images and augments its images anew in every epoch. A sample has the fields images and labels. If
/// samples are mixed, a sample also has StateField::other_labels and the shares of both labels, `shares` and
/// `other_shares`, whose sum is 1. Each reading thread allocates a little memory once.
class AugmentedImages final : public Dataset {
 public:
  /// Throws UsageError if an option is out of range, `images` is null, or reflected padding is as wide as a side.
  AugmentedImages(std::unique_ptr<ImageDataset> images, const AugmentationOptions& options);

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { images_->ahead(begin, count); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const override;

  [[nodiscard]] const ImageDataset& images() const { return *images_; }
  [[nodiscard]] const AugmentationOptions& options() const { return options_; }

  /// Mixture of a sample with the sample `other`, in one epoch. `share` is the share of the sample itself. `cut` is
  /// true for cutmix: `other` then covers columns [left, right) and rows [top, bottom). For mixup, these four numbers
  /// are 0.
  struct Mixture {
    std::int64_t other = 0;
    double share = 1;
    bool cut = false;
    std::int64_t left = 0, right = 0, top = 0, bottom = 0;
  };
  [[nodiscard]] Mixture mixture(std::int64_t epoch, std::int64_t index) const;
  /// Writes image `index` to `image` after all steps except the mixing. `image` holds image_bytes() of the set.
  void read_unmixed(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;
  /// Writes the source of image `index` to `row`, like ImageDataset::read_part(), for device_preprocessing(). The
  /// device does the colours and all later steps. Padding, mirroring and `automatic` are already applied, because a
  /// device does not do these steps.
  [[nodiscard]] PicturePart read_part(std::int64_t epoch, std::int64_t index, bool keep_jpeg,
                                      std::span<std::uint8_t> row) const;

 private:
  /// Writes image `index` to `image` after all steps that come before the colours.
  void read_placed(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;

  std::unique_ptr<ImageDataset> images_;
  AugmentationOptions options_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace lockstep::nn

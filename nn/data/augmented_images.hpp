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

/// What a training image goes through in an epoch, in the loader's threads or, from the colours on, on a device
/// (Dataset::device_preprocessing()), in the order of torchvision's recipes:
///
///     picture -> random part, resized            CropOptions; folder:DIR takes it while it decodes (FolderOptions)
///             or padding, then a crop            `pad`     \ as ops::augment does them where nothing else is asked
///             -> mirrored                        `flip`    / for, with the same draws
///             -> TrivialAugment, RandAugment     `automatic`
///             -> colours                         JitterOptions
///             -> a rectangle erased              `erase`
///             -> mixed with another sample       `mixup`, `cutmix`: the batch then brings two labels and their shares
///     -> u8 (H, W, 3), which the device normalises (ops::augment with pad 0 and no flip)
///
/// All draws are of Random(seed, augment, epoch, sample), each step with numbers of its own: an image is the same for
/// any number of ranks, threads and batches, and switching a step on leaves the others as they were. The partner of a
/// mixed sample is drawn from the whole set, not from the batch, and looks as it does itself in that epoch; so a mixed
/// set decodes two pictures a sample. Test images are read as they are: folder:DIR resizes them and takes the middle.
namespace lockstep::nn {

/// torchvision's ColorJitter: how far each may change. Brightness, contrast and saturation by a factor from
/// max(0, 1 - value) to 1 + value; hue by a turn from -value to value, up to 0.5 (half of the circle). In random order.
struct JitterOptions {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  [[nodiscard]] bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct AugmentationOptions {
  std::optional<CropOptions> crop{};  ///< resized to the size of the image; not beside `pad`
  std::int64_t pad = 0;               ///< pixels on each side before a crop of the same size: black, or
  bool reflect = false;               ///< the image reflected about its edge pixels
  bool flip = false;                  ///< mirrored left to right with probability 1/2, or
  bool alternate = false;             ///< in every other epoch: ops::AugmentDesc::alternate
  AutoAugment automatic = AutoAugment::none;
  JitterOptions jitter{};
  /// The probability of torchvision's RandomErasing: a rectangle of 2 to 33 % of the area, sides 3:10 to 10:3.
  double erase = 0;
  std::array<std::uint8_t, 3> fill{};  ///< of an erased rectangle: the mean, which is 0 once it is normalised
  /// Beta(alpha, alpha) is the distribution of the share of a sample in the mixture of two (Zhang et al. 2017) or in
  /// the area of a rectangle of the other one (Yun et al. 2019); 0: none. With both, half of the samples get each.
  double mixup = 0;
  double cutmix = 0;
  std::uint64_t seed = 0;

  /// Something that ops::augment does not do.
  [[nodiscard]] bool any() const {
    return crop.has_value() || automatic != AutoAugment::none || jitter.any() || erase > 0 || mixes();
  }
  [[nodiscard]] bool mixes() const { return mixup > 0 || cutmix > 0; }
};

/// UsageError naming the value and what was expected.
void require_augmentation(const AugmentationOptions& options);
/// What it does, for people and for the identity of a run: "colour jitter 0.4 0.4 0.4 0.1, erased with probability
/// 0.25", with all digits. Without the seed and the fill. Empty: nothing.
[[nodiscard]] std::string text_of(const AugmentationOptions& options);

/// The images of another set, which it owns, augmented in every epoch. Fields: images and labels; of a set that mixes
/// also StateField::other_labels and the shares of both labels, `shares` and `other_shares`, whose sum is 1. Allocates
/// little per thread, once.
class AugmentedImages final : public Dataset {
 public:
  /// UsageError for bad options, no images, and a reflected padding of an image's side or more.
  AugmentedImages(std::unique_ptr<ImageDataset> images, const AugmentationOptions& options);

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { images_->ahead(begin, count); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const override;

  [[nodiscard]] const ImageDataset& images() const { return *images_; }
  [[nodiscard]] const AugmentationOptions& options() const { return options_; }

  /// With which sample one is mixed in an epoch. share: of the sample itself. Of cutmix the part of the image that the
  /// other one covers, in pixels [left, right) and [top, bottom); all 0 of mixup.
  struct Mixture {
    std::int64_t other = 0;
    double share = 1;
    bool cut = false;
    std::int64_t left = 0, right = 0, top = 0, bottom = 0;
  };
  [[nodiscard]] Mixture mixture(std::int64_t epoch, std::int64_t index) const;
  /// An image before it is mixed; `image` holds image_bytes() of the set.
  void read_unmixed(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;
  /// For device_preprocessing(), as ImageDataset::read_part(): an image before its colours change. What a device does
  /// not do (padding, mirrors, `automatic`) is done.
  [[nodiscard]] PicturePart read_part(std::int64_t epoch, std::int64_t index, bool keep_jpeg,
                                      std::span<std::uint8_t> row) const;

 private:
  /// Before its colours change.
  void read_placed(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;

  std::unique_ptr<ImageDataset> images_;
  AugmentationOptions options_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace lockstep::nn

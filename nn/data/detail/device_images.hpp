#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/device_preprocessing.hpp>

namespace lockstep::nn::detail {

/// Columns of StateField::picture_work (f64), which holds the parameters of the steps that a device does to a picture.
/// Each constant is the first column of a group of parameters. A row of zeros means that there is no picture, and gives
/// a black image.
struct WorkColumns {
  static constexpr int kPart = 0;      ///< first column of the parameters of ops::resized_crop()
  static constexpr int kFile = 13;     ///< column of the JPEG file's size in bytes (PicturePart::file_bytes)
  static constexpr int kChanges = 14;  ///< first column of the parameters of ops::adjust_colours()
  static constexpr int kErased = 22;   ///< first column of the rectangle that ops::erase_and_mix() erases
  static constexpr int kMixture = 26;  ///< first column of the mixture, in the row of the sample's first picture
  static constexpr int kColumns = 32;
};

/// Returns the PicturePart of pixels that already are the finished image.
[[nodiscard]] PicturePart whole_image(std::int64_t width, std::int64_t height);

/// Result of ImageDataset::device_preprocessing() and AugmentedImages::device_preprocessing(). The fields are
/// `pictures`, u8 (pictures per sample, bytes); `picture_work`, f64 (pictures per sample, columns); and `labels`. If
/// samples are mixed, a sample has two pictures, and also the fields of the other labels and of the shares.
class DeviceImages final : public DevicePreprocessing {
 public:
  DeviceImages(const ImageDataset& images, bool keep_jpeg);
  DeviceImages(const AugmentedImages& images, bool keep_jpeg);

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { whole_.ahead(begin, count); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return whole_.fingerprint(); }
  [[nodiscard]] std::unique_ptr<BatchPreprocessor> preprocessor(Context& context, std::int64_t capacity) const override;
  [[nodiscard]] std::size_t preprocessor_bytes(Device device, std::int64_t capacity) const override;

  [[nodiscard]] const ImageDataset& images() const { return images_; }
  [[nodiscard]] const AugmentationOptions& options() const { return options_; }
  [[nodiscard]] bool keeps_jpeg() const { return keep_jpeg_; }
  [[nodiscard]] std::int64_t pictures() const { return options_.mixes() ? 2 : 1; }  ///< pictures per sample
  /// Returns the index of the sample with which sample `index` is mixed. May be called only if samples are mixed.
  [[nodiscard]] std::int64_t other_of(std::int64_t epoch, std::int64_t index) const {
    return augmented_->mixture(epoch, index).other;
  }
  [[nodiscard]] std::int64_t row_bytes() const { return images_.part_bytes(); }
  /// Returns the number of bytes of a row in the device's memory. A row holds one decoded picture.
  [[nodiscard]] std::int64_t decoded_bytes() const { return keep_jpeg_ ? images_.decoded_bytes() : row_bytes(); }

 private:
  void read(std::optional<std::int64_t> epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const;
  DeviceImages(const Dataset& whole, const ImageDataset& images, const AugmentedImages* augmented, bool keep_jpeg);
  void read_picture(std::optional<std::int64_t> epoch, std::int64_t index, std::span<std::uint8_t> row,
                    std::span<double> work) const;

  const Dataset& whole_;
  const ImageDataset& images_;
  const AugmentedImages* augmented_;  ///< augmented set, which owns images_; nullptr if images are not augmented
  AugmentationOptions options_{};
  bool keep_jpeg_;
};

}  // namespace lockstep::nn::detail

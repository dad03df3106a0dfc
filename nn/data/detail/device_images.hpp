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

/// The columns of StateField::picture_work, f64: what is left to do to a picture. All 0: no picture, a black image.
struct WorkColumns {
  static constexpr int kPart = 0;      ///< ops::resized_crop()'s
  static constexpr int kFile = 13;     ///< PicturePart::file_bytes
  static constexpr int kChanges = 14;  ///< ops::adjust_colours()'s
  static constexpr int kErased = 22;   ///< ops::erase_and_mix()'s: a rectangle
  static constexpr int kMixture = 26;  ///< and how it is mixed; of a sample's first picture
  static constexpr int kColumns = 32;
};

/// A picture that already is the image.
[[nodiscard]] PicturePart whole_image(std::int64_t width, std::int64_t height);

/// ImageDataset::device_preprocessing() and AugmentedImages::device_preprocessing(). Fields: pictures u8 (pictures of a
/// sample, bytes), picture_work f64 (pictures of a sample, columns), labels; and the labels and shares of a set that
/// mixes, which has two pictures a sample.
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
  [[nodiscard]] std::int64_t pictures() const { return options_.mixes() ? 2 : 1; }  ///< of a sample
  /// The second picture of a sample of a set that mixes.
  [[nodiscard]] std::int64_t other_of(std::int64_t epoch, std::int64_t index) const {
    return augmented_->mixture(epoch, index).other;
  }
  [[nodiscard]] std::int64_t row_bytes() const { return images_.part_bytes(); }
  /// A picture on the device, decoded.
  [[nodiscard]] std::int64_t decoded_bytes() const { return keep_jpeg_ ? images_.decoded_bytes() : row_bytes(); }

 private:
  void read(std::optional<std::int64_t> epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const;
  DeviceImages(const Dataset& whole, const ImageDataset& images, const AugmentedImages* augmented, bool keep_jpeg);
  void read_picture(std::optional<std::int64_t> epoch, std::int64_t index, std::span<std::uint8_t> row,
                    std::span<double> work) const;

  const Dataset& whole_;
  const ImageDataset& images_;
  const AugmentedImages* augmented_;  ///< nullptr: there is nothing but images_
  AugmentationOptions options_{};
  bool keep_jpeg_;
};

}  // namespace lockstep::nn::detail

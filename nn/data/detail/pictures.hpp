#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/nn/data/open_data.hpp>

namespace lockstep::nn {
struct PackedSample;  // nn/data/packed/packed_file.hpp
}

namespace lockstep::nn::detail {

/// Pictures of any size, by index: in files, or packed. Immutable; any number of threads.
class Pictures {
 public:
  virtual ~Pictures() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// FolderFile::name: a part of the fingerprint.
  [[nodiscard]] virtual std::string_view name(std::int64_t index) const = 0;

  struct Opened {
    std::string text{};  ///< for errors
    images::Header header{};
    std::span<const std::uint8_t> bytes{};  ///< of the file
    bool decoded = false;                   ///< bytes are pixels (height, width, 3)
  };
  /// A picture before it is decoded. Its bytes may lie in `memory`. DataError.
  [[nodiscard]] virtual Opened open(std::int64_t index, std::vector<std::uint8_t>& memory) const = 0;
  virtual void ahead(std::int64_t /*begin*/, std::int64_t /*count*/) const noexcept {}  ///< Dataset::ahead()
};

/// Pictures resized and cropped to images of one size, as FolderOptions says.
class PictureImages final : public ImageDataset {
 public:
  /// `random`: training images are random parts. `kind`: of pixels that differ from the folder's; 0: they do not.
  PictureImages(const std::string& name, std::unique_ptr<const Pictures> pictures, int classes,
                const FolderOptions& options, std::uint64_t seed, bool random, std::uint64_t kind = 0);

  [[nodiscard]] std::int32_t label(std::int64_t index) const override { return pictures_->label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override { read(index, std::nullopt, image); }
  void read_in(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const override {
    read(index, random_ ? std::optional(epoch) : std::nullopt, image);
  }
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { pictures_->ahead(begin, count); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] PicturePart read_part(std::optional<std::int64_t> epoch, std::int64_t index, bool keep_jpeg,
                                      std::span<std::uint8_t> row) const override;
  /// Most pictures of ImageNet have fewer than twice the image's side, once a JPEG file is decoded.
  [[nodiscard]] std::int64_t part_bytes() const override { return 4 * image_bytes(); }
  [[nodiscard]] std::string text_of(std::int64_t index) const override;
  /// "; enlarged, as most have a shorter side of 32 pixels", by some of the pictures; empty where most are not
  /// enlarged.
  [[nodiscard]] std::string enlarged_text() const;

 private:
  /// A picture, and the axes of the image on it as it is stored.
  struct Placed {
    Pictures::Opened opened;
    bool transposed = false;
    images::Axis x;
    images::Axis y;
    int shrink = 1;  ///< that decoding may take
  };
  [[nodiscard]] Placed place(std::optional<std::int64_t> epoch, std::int64_t index,
                             std::vector<std::uint8_t>& memory) const;
  void read(std::int64_t index, std::optional<std::int64_t> epoch, std::span<std::uint8_t> image) const;

  std::unique_ptr<const Pictures> pictures_;
  std::int64_t resize_;
  CropOptions crop_;
  std::uint64_t seed_;
  bool random_;
  bool flip_;
  std::uint64_t fingerprint_ = 0;
};

/// The greatest shrink (images::decode) that leaves two pixels of the picture to one of the image, for these steps of
/// the axes.
[[nodiscard]] int shrink_for(double step_x, double step_y);
/// An axis of a picture that was decoded smaller, to `extent` pixels.
[[nodiscard]] images::Axis shrunk(const images::Axis& axis, int shrink, std::int64_t extent);
/// A large picture does not keep its memory.
template <class T>
void keep_little(std::vector<T>& memory) {
  constexpr std::size_t kMostKept = std::size_t{1} << 25;
  if (memory.capacity() * sizeof(T) > kMostKept) {
    std::vector<T>().swap(memory);
  }
}

/// UsageError in a build without the libraries. data: "folder:DIR", "list:FILE".
void require_decoders(const std::string& data);
/// The options with what they mean. UsageError.
[[nodiscard]] FolderOptions resolved(FolderOptions options);
/// The sets of `split`, as a user wants to know of them: "resized to 256 and cropped; random crops to train on".
[[nodiscard]] std::string text_of(const FolderOptions& resolved);
/// The mean and the standard deviation of ImageNet's training set, as torchvision's models use them.
[[nodiscard]] ChannelStatistics imagenet_statistics();

/// Where a file of a FolderList lies.
[[nodiscard]] std::string path_of(const std::string& root, const std::string& name);
/// The same for errors.
[[nodiscard]] std::string shown(const std::string& root, const std::string& name);
/// Reads a file of a FolderList and what its beginning says.
[[nodiscard]] images::Header load_picture(const std::string& root, const std::string& name, const std::string& text,
                                          std::vector<std::uint8_t>& bytes);

/// The header of a packed JPEG or PNG file, whose bytes PackedFile::read() gave. `text`: text_of() it. DataError when
/// the picture has another size than the index says. UnsupportedError in a build without the libraries.
[[nodiscard]] images::Header packed_header(const PackedSample& sample, std::span<const std::uint8_t> bytes,
                                           const std::string& text);

}  // namespace lockstep::nn::detail

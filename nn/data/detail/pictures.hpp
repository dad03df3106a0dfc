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
struct PackedSample;  // defined in nn/data/packed/packed_file.hpp
}

namespace lockstep::nn::detail {

/// A set of image files of any size, read by index. The files lie in a folder, or in a packed file, which may also hold
/// decoded pixels. The set is immutable; any number of threads may read at the same time.
class Pictures {
 public:
  virtual ~Pictures() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Returns the name of file `index` (FolderFile::name). The names are a part of the fingerprint.
  [[nodiscard]] virtual std::string_view name(std::int64_t index) const = 0;

  struct Opened {
    std::string text{};  ///< name of the picture, for errors
    images::Header header{};
    std::span<const std::uint8_t> bytes{};  ///< contents of the file, or pixels
    bool decoded = false;                   ///< true: `bytes` are pixels (height, width, 3)
  };
  /// Returns picture `index` before it is decoded. The span `bytes` of the result may point into `memory`. Throws
  /// DataError if the picture is damaged.
  [[nodiscard]] virtual Opened open(std::int64_t index, std::vector<std::uint8_t>& memory) const = 0;
  virtual void ahead(std::int64_t /*begin*/, std::int64_t /*count*/) const noexcept {}  ///< see Dataset::ahead()
};

/// Set of images of one size. FolderOptions says how pictures are resized and cropped to this size.
class PictureImages final : public ImageDataset {
 public:
  /// If `random` is true, each epoch's images are random parts of the pictures. `kind` becomes a part of the
  /// fingerprint: pass 0 if the pixels equal the pixels that a folder of the same pictures gives, otherwise not 0.
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
  /// Returns four times image_bytes(). Most decoded pictures of ImageNet need no more bytes, because their sides are
  /// less than twice the image's side.
  [[nodiscard]] std::int64_t part_bytes() const override { return 4 * image_bytes(); }
  [[nodiscard]] std::string text_of(std::int64_t index) const override;
  /// Reads the sizes of a few pictures. If most of these pictures are smaller than the image, returns a text like ";
  /// enlarged, as most have a shorter side of 32 pixels". Otherwise returns an empty text.
  [[nodiscard]] std::string enlarged_text() const;

 private:
  /// An opened picture and the two axes along which an image is resampled from the stored picture, in pixels of that
  /// picture.
  struct Placed {
    Pictures::Opened opened;
    bool transposed = false;
    images::Axis x;
    images::Axis y;
    int shrink = 1;  ///< factor by which images::decode() may make the picture smaller
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

/// Returns the greatest shrink factor of images::decode() that leaves at least two pixels of the picture for each pixel
/// of the image along both axes. `step_x` and `step_y` are Axis::step of the two axes.
[[nodiscard]] int shrink_for(double step_x, double step_y);
/// Converts an axis to pixels of a picture that images::decode() made `shrink` times smaller. `extent` is the number of
/// pixels that the smaller picture has along the axis.
[[nodiscard]] images::Axis shrunk(const images::Axis& axis, int shrink, std::int64_t extent);
/// Frees `memory` if a large picture made it larger than 32 MiB.
template <class T>
void keep_little(std::vector<T>& memory) {
  constexpr std::size_t kMostKept = std::size_t{1} << 25;
  if (memory.capacity() * sizeof(T) > kMostKept) {
    std::vector<T>().swap(memory);
  }
}

/// Throws UsageError in a build without the JPEG and PNG libraries. `data` names the data in the error text, like
/// "folder:DIR".
void require_decoders(const std::string& data);
/// Returns `options`, with a `resize` of 0 replaced by image_size * 256 / 224, rounded. Throws UsageError if an option
/// is out of range.
[[nodiscard]] FolderOptions resolved(FolderOptions options);
/// Describes for a user how images are made, like "resized to 256 and cropped; random crops to train on".
[[nodiscard]] std::string text_of(const FolderOptions& resolved);
/// Returns the mean and the standard deviation of ImageNet's training set, with the numbers of torchvision's models.
[[nodiscard]] ChannelStatistics imagenet_statistics();

/// Returns the path of the file `name` of a FolderList whose root is `root`.
[[nodiscard]] std::string path_of(const std::string& root, const std::string& name);
/// Returns the path of file `name` of a FolderList in printable characters; if the path is long, only `name`.
[[nodiscard]] std::string shown(const std::string& root, const std::string& name);
/// Reads the file `name` of a FolderList into `bytes` and returns the picture's header.
[[nodiscard]] images::Header load_picture(const std::string& root, const std::string& name, const std::string& text,
                                          std::vector<std::uint8_t>& bytes);

/// Returns the header of a packed JPEG or PNG file. `bytes` must be the result of PackedFile::read(), and `text` must
/// be the result of PackedFile::text_of(). Throws DataError if the picture's size differs from the size in the index,
/// and UnsupportedError in a build without the JPEG and PNG libraries.
[[nodiscard]] images::Header packed_header(const PackedSample& sample, std::span<const std::uint8_t> bytes,
                                           const std::string& text);

}  // namespace lockstep::nn::detail

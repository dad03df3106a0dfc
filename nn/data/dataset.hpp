#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/batch/batch.hpp>

namespace lockstep::nn {

class DevicePreprocessing;  // nn/data/device_preprocessing.hpp

/// Where pictures become images.
enum class PicturesOn : unsigned char {
  host,    ///< in the loader's threads
  device,  ///< these read and decode; kernels resize, recolour, erase and mix. The same bits
  nvjpeg   ///< and the GPU decodes JPEG files, to pixels that differ a little
};
[[nodiscard]] const char* name_of(PicturesOn where);
/// Of the names above. UsageError for others.
[[nodiscard]] PicturesOn parse_pictures_on(const std::string& name);

/// A field of a sample, as the data set reads it.
struct SampleField {
  StateField field;
  DType dtype;
  Shape shape;  ///< of one sample, row-major: the logical shape, as the model counts (nn/batch/batch.hpp)
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
};

/// Samples by index. Immutable; any number of threads may read at once. Derive from it to bring your own data, or give
/// existing tensors to a MemoryDataset.
class Dataset {
 public:
  /// UsageError unless there is at least one sample and one field, and each field occurs once.
  Dataset(std::string name, std::int64_t size, std::vector<SampleField> fields);
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }  ///< for people and error texts
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::span<const SampleField> fields() const { return fields_; }

  /// Writes sample `index` (0 <= index < size()): out[i] gets the bytes of fields()[i]. Allocates nothing, unless it
  /// decodes files.
  virtual void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const = 0;
  /// The sample as it is in one epoch, for sets that vary their samples (random crops): a function of epoch and index
  /// alone. This is what a loader reads. Here: read_sample().
  virtual void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const;
  /// Samples [begin, begin + count), which are in the set, will be read soon: a set that lies in a file tells the
  /// system, which then reads a piece at once. A hint, without errors. Here: nothing.
  virtual void ahead(std::int64_t begin, std::int64_t count) const noexcept;
  /// The same samples without what a device can do to them as well; this must outlive them. nullptr, as here: nothing.
  /// keep_jpeg: JPEG files stay as they are, where nvJPEG reads them.
  [[nodiscard]] virtual std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const;
  /// Hash of sizes and contents. Ranks that see the same data have the same value; the name is not part of it.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

 private:
  std::string name_;
  std::int64_t size_;
  std::vector<SampleField> fields_;
};

/// Samples in memory, one tensor per field. The axes are those of nn/batch/batch.hpp in the model's order: (N, sample
/// ...).
class MemoryDataset final : public Dataset {
 public:
  /// Copies the tensors, which are on the host and may have any strides. ShapeError when they hold different numbers of
  /// samples.
  MemoryDataset(std::string name, std::span<const FieldView> fields);
  MemoryDataset(std::string name, std::initializer_list<FieldView> fields)
      : MemoryDataset(std::move(name), std::span(fields.begin(), fields.size())) {}

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::vector<std::byte>> data_;  ///< by field
  std::uint64_t fingerprint_ = 0;
};

/// The training and the test set of a trainer, which must outlive it.
struct TrainingData {
  const Dataset& train;
  const Dataset& test;
};

/// The fixed properties of a set of images. Images have three channels; a set with one channel repeats it.
struct DatasetInfo {
  std::string name;  ///< for people and error texts: "cifar10:DIR test"
  std::int64_t size = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  int classes = 0;
};

/// A picture that is not resized yet, and how it becomes an image.
struct PicturePart {
  /// As kernels/resized_crop.hpp says: an axis of the whole picture, as it is stored.
  struct Axis {
    double begin = 0;
    double step = 1;
    std::int64_t low = 0;
    std::int64_t high = 0;
  };
  std::int64_t width = 0;  ///< pixels that are given: those from (top, left) of the picture on
  std::int64_t height = 0;
  std::int64_t left = 0;
  std::int64_t top = 0;
  bool transposed = false;  ///< the image's rows go along the picture's columns
  Axis x{};
  Axis y{};
  std::int64_t file_bytes = 0;  ///< 0: pixels are given. Else a JPEG file of the whole picture
};

/// Labelled images by index: fields images (u8 (H, W, 3)) and labels (i32).
class ImageDataset : public Dataset {
 public:
  explicit ImageDataset(DatasetInfo info);  ///< UsageError unless all numbers are positive

  [[nodiscard]] std::int64_t height() const { return height_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] int classes() const { return classes_; }
  [[nodiscard]] std::int64_t image_bytes() const { return height_ * width_ * 3; }

  /// In [0, classes()).
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Writes image `index`; `image` (H, W, 3) holds image_bytes() bytes. Allocates nothing, unless it decodes a file.
  virtual void read(std::int64_t index, std::span<std::uint8_t> image) const = 0;
  /// The image as it is in one epoch (read_sample_in()). Here: read().
  virtual void read_in(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const final;
  void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const final;

  /// For device_preprocessing(): writes the pixels of a picture that the image is made of, or its JPEG file, to the
  /// beginning of `row`, which holds part_bytes(). No epoch: as read() reads it. A file only with keep_jpeg, and only
  /// where its pixels take at most decoded_bytes(). Here, and wherever nothing else fits: the image itself.
  [[nodiscard]] virtual PicturePart read_part(std::optional<std::int64_t> epoch, std::int64_t index, bool keep_jpeg,
                                              std::span<std::uint8_t> row) const;
  [[nodiscard]] virtual std::int64_t part_bytes() const { return image_bytes(); }  ///< at least image_bytes()
  [[nodiscard]] std::int64_t decoded_bytes() const { return 2 * part_bytes(); }
  /// For errors: the picture's file, where it has one.
  [[nodiscard]] virtual std::string text_of(std::int64_t index) const;
  [[nodiscard]] std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const final;

 private:
  std::int64_t height_;
  std::int64_t width_;
  int classes_;
};

/// Mean and standard deviation of value / 255 per channel.
struct ChannelStatistics {
  std::array<float, 3> mean{};
  std::array<float, 3> std{1, 1, 1};
};

/// Computed from `samples` images spread evenly over the set (all, if there are fewer). Summed in integers, so the bits
/// are the same everywhere. A constant channel has std 1.
[[nodiscard]] ChannelStatistics channel_statistics(const ImageDataset& dataset, std::int64_t samples);

/// Whether samples of a class lie side by side much more often than in a random order: labels change less than half as
/// often from sample to sample.
[[nodiscard]] bool lies_by_class(const ImageDataset& dataset);
/// Whether a shuffle in chunks of so many samples (SamplerOptions::chunk) leaves batches with less than half of the
/// classes that they have in a random order, as far as the order of the samples tells: they lie by class, and the
/// chunks of a window have few classes.
[[nodiscard]] bool chunks_separate_classes(const ImageDataset& dataset, std::int64_t chunk);

}  // namespace lockstep::nn

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

class DevicePreprocessing;  // defined in nn/data/device_preprocessing.hpp

/// Place where image files are turned into images of the model's size.
enum class PicturesOn : unsigned char {
  host,    ///< the loader's threads do all steps of the preparation
  device,  ///< the loader's threads read and decode; kernels resize, recolour, erase and mix. Same bits as `host`
  nvjpeg   ///< like `device`, but the GPU also decodes JPEG files; pixels differ a little from `host` and `device`
};
[[nodiscard]] const char* name_of(PicturesOn where);
/// Returns the value of PicturesOn whose name_of() is `name`. Throws UsageError if no value has this name.
[[nodiscard]] PicturesOn parse_pictures_on(const std::string& name);

/// A field that every sample of a data set has.
struct SampleField {
  StateField field;
  DType dtype;
  Shape shape;  ///< logical shape of one sample, row-major, in the model's order of axes (nn/batch/batch.hpp)
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
};

/// A set of samples, read by index. The set is immutable, so any number of threads may read at the same time. Derive
/// from Dataset to bring your own data, or give existing tensors to a MemoryDataset.
class Dataset {
 public:
  /// Throws UsageError unless there is at least one sample and one field, each field occurs once, and no field is
  /// sample_ids.
  Dataset(std::string name, std::int64_t size, std::vector<SampleField> fields);
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }  ///< name for people and error texts
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::span<const SampleField> fields() const { return fields_; }

  /// Writes sample `index` (0 <= index < size()): the bytes of the field fields()[i] go to out[i]. Allocates nothing,
  /// except in a set that decodes files.
  virtual void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const = 0;
  /// Writes sample `index` as it is in epoch `epoch`, for sets that vary their samples (random crops). The bytes depend
  /// only on `epoch` and `index`. A loader calls this function. The default implementation calls read_sample().
  virtual void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const;
  /// Hints that samples [begin, begin + count), all in the set, will be read soon. A set in a mapped file passes the
  /// hint to the operating system, which then reads the whole range at once. Reports no errors. The default
  /// implementation does nothing.
  virtual void ahead(std::int64_t begin, std::int64_t count) const noexcept;
  /// Returns a set of the same samples without the last steps of their preparation, for a device that does these steps.
  /// Returns nullptr, as the default implementation does, if a device can do none of the steps. If `keep_jpeg` is true
  /// and nvJPEG can read the file of a sample, the sample holds the JPEG file instead of the pixels. This set must
  /// outlive the result.
  [[nodiscard]] virtual std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const;
  /// Returns a hash of the set's sizes and contents, without its name. Ranks that see the same data get the same value.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

 private:
  std::string name_;
  std::int64_t size_;
  std::vector<SampleField> fields_;
};

/// Samples in memory, one tensor per field. The shape of a tensor is (N, shape of a sample), with the axes in the
/// model's order (nn/batch/batch.hpp).
class MemoryDataset final : public Dataset {
 public:
  /// Copies the tensors, which are on the host and may have any strides. Throws ShapeError when the tensors hold
  /// different numbers of samples.
  MemoryDataset(std::string name, std::span<const FieldView> fields);
  MemoryDataset(std::string name, std::initializer_list<FieldView> fields)
      : MemoryDataset(std::move(name), std::span(fields.begin(), fields.size())) {}

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::vector<std::byte>> data_;  ///< for each field, the bytes of all samples
  std::uint64_t fingerprint_ = 0;
};

/// The training and the test set of a trainer. Both must outlive the trainer.
struct TrainingData {
  const Dataset& train;
  const Dataset& test;
};

/// Fixed properties of a set of images. Images have three channels; a set with one channel repeats that channel.
struct DatasetInfo {
  std::string name;  ///< name for people and error texts: "cifar10:DIR test"
  std::int64_t size = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  int classes = 0;
};

/// A picture (an image file or its pixels) before it is resized to an image, and the parameters of the resizing.
struct PicturePart {
  /// Axis of the stored picture along which pixels are resampled. Output i is a weighted mean of the pixels around the
  /// middle of [begin + i * step, begin + (i + 1) * step). Only pixels in [low, high) are used.
  struct Axis {
    double begin = 0;
    double step = 1;
    std::int64_t low = 0;
    std::int64_t high = 0;
  };
  std::int64_t width = 0;   ///< columns of the rectangle of pixels that is stored
  std::int64_t height = 0;  ///< rows of the rectangle of pixels that is stored
  std::int64_t left = 0;    ///< column of the picture at which the stored rectangle begins
  std::int64_t top = 0;     ///< row of the picture at which the stored rectangle begins
  bool transposed = false;  ///< true: rows of the image run along columns of the picture
  Axis x{};
  Axis y{};
  std::int64_t file_bytes = 0;  ///< size of the picture's JPEG file; 0: the pixels are stored, not the file
};

/// Labelled images by index. A sample has the fields images (u8 (H, W, 3)) and labels (i32).
class ImageDataset : public Dataset {
 public:
  explicit ImageDataset(DatasetInfo info);  ///< throws UsageError unless all numbers in `info` are positive

  [[nodiscard]] std::int64_t height() const { return height_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] int classes() const { return classes_; }
  [[nodiscard]] std::int64_t image_bytes() const { return height_ * width_ * 3; }

  /// Returns the label of image `index`, in [0, classes()).
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Writes image `index` to `image` (H, W, 3), which holds image_bytes() bytes. Allocates nothing, except in a set
  /// that decodes files.
  virtual void read(std::int64_t index, std::span<std::uint8_t> image) const = 0;
  /// Writes image `index` as it is in epoch `epoch`, for read_sample_in(). The default implementation calls read().
  virtual void read_in(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const;
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const final;
  void read_sample_in(std::int64_t epoch, std::int64_t index, std::span<const std::span<std::byte>> out) const final;

  /// Writes the source of image `index` to the beginning of `row`, for device_preprocessing(). The source is the
  /// picture's JPEG file or a rectangle of its pixels; the result describes it. `row` holds part_bytes() bytes. Without
  /// `epoch`, the image shows the part of the picture that read() takes.
  ///
  /// The source may be the JPEG file only if `keep_jpeg` is true and the decoded pixels take at most decoded_bytes().
  /// If the source does not fit into `row`, the function must write the finished image instead. The default
  /// implementation always writes the finished image.
  [[nodiscard]] virtual PicturePart read_part(std::optional<std::int64_t> epoch, std::int64_t index, bool keep_jpeg,
                                              std::span<std::uint8_t> row) const;
  [[nodiscard]] virtual std::int64_t part_bytes() const { return image_bytes(); }  ///< bytes of `row`; >= image_bytes()
  [[nodiscard]] std::int64_t decoded_bytes() const { return 2 * part_bytes(); }
  /// Returns a name of sample `index` for error texts: the name of the sample's file, if there is a file.
  [[nodiscard]] virtual std::string text_of(std::int64_t index) const;
  [[nodiscard]] std::unique_ptr<DevicePreprocessing> device_preprocessing(bool keep_jpeg) const final;

 private:
  std::int64_t height_;
  std::int64_t width_;
  int classes_;
};

/// Mean and standard deviation of each channel. A pixel counts with the value byte / 255.
struct ChannelStatistics {
  std::array<float, 3> mean{};
  std::array<float, 3> std{1, 1, 1};
};

/// Computes the statistics of `samples` images that are spread evenly over the set; of all images, if the set has
/// fewer. The sums are integers, so the bits are the same on every machine. A constant channel has the standard
/// deviation 1.
[[nodiscard]] ChannelStatistics channel_statistics(const ImageDataset& dataset, std::int64_t samples);

/// Returns true if most neighbouring samples have the same class: from sample to sample, the label changes less than
/// half as often as in a random order.
[[nodiscard]] bool lies_by_class(const ImageDataset& dataset);
/// Returns true if batches of a shuffle in chunks of `chunk` samples (SamplerOptions::chunk) have less than half as
/// many classes as batches in random order. The result is an estimate: it is true if lies_by_class() is true and a
/// window of the sampler (16 or more chunks) has few classes.
[[nodiscard]] bool chunks_separate_classes(const ImageDataset& dataset, std::int64_t chunk);

}  // namespace lockstep::nn

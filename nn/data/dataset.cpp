#include <lockstep/nn/data/dataset.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <lockstep/nn/data/detail/device_images.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

Dataset::Dataset(std::string name, std::int64_t size, std::vector<SampleField> fields)
    : name_(std::move(name)), size_(size), fields_(std::move(fields)) {
  require<UsageError>(size_ > 0 && !fields_.empty(), name_, ": ", size_, " samples of ", fields_.size(),
                      " fields, expected at least one of each");
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    require<UsageError>(fields_[i].field != StateField::sample_ids, name_,
                        ": field 'sample_ids' is given, expected none: the loader fills it with the samples' numbers");
    for (std::size_t other = 0; other < i; ++other) {
      require<UsageError>(fields_[i].field != fields_[other].field, name_, ": field '", name_of(fields_[i].field),
                          "' stands twice, expected each field once");
    }
  }
}

void Dataset::read_sample_in(std::int64_t /*epoch*/, std::int64_t index,
                             std::span<const std::span<std::byte>> out) const {
  read_sample(index, out);
}

void Dataset::ahead(std::int64_t /*begin*/, std::int64_t /*count*/) const noexcept {}

std::unique_ptr<DevicePreprocessing> Dataset::device_preprocessing(bool /*keep_jpeg*/) const {
  return nullptr;
}

const char* name_of(PicturesOn where) {
  return where == PicturesOn::host ? "host" : where == PicturesOn::device ? "device" : "nvjpeg";
}

PicturesOn parse_pictures_on(const std::string& name) {
  for (const PicturesOn where : {PicturesOn::host, PicturesOn::device, PicturesOn::nvjpeg}) {
    if (name == name_of(where)) {
      return where;
    }
  }
  throw UsageError(concat("--pictures is '", name, "', expected host, device or nvjpeg"));
}

namespace {

/// `given` holds a field of all samples, with shape (N, shape of a sample). Returns the type and shape of this field in
/// one sample.
SampleField sample_of(const FieldView& given) {
  require<ShapeError>(given.view.given() && given.view.shape.rank() >= 1, "field '", name_of(given.field), "' is ",
                      given.view, ", expected a tensor (N, ...) of N samples");
  require<UsageError>(given.axes.empty(), "field '", name_of(given.field), "' has axes '", given.axes,
                      "', expected none: samples come first, the other axes are in the model's order");
  Shape shape;
  for (int axis = 1; axis < given.view.shape.rank(); ++axis) {
    shape.push_back(given.view.shape[axis]);
  }
  return {given.field, given.view.dtype, shape};
}

std::vector<SampleField> samples_of(std::span<const FieldView> fields) {
  std::vector<SampleField> samples;
  for (const FieldView& field : fields) {
    samples.push_back(sample_of(field));
  }
  return samples;
}

std::int64_t size_of_all(std::span<const FieldView> fields) {
  return fields.empty() || fields[0].view.shape.rank() == 0 ? 0 : fields[0].view.shape[0];
}

std::int64_t checked_size(const DatasetInfo& info) {
  require<UsageError>(info.size > 0 && info.height > 0 && info.width > 0 && info.classes > 0, info.name, ": ",
                      info.size, " images of ", info.height, " x ", info.width, " in ", info.classes,
                      " classes, expected positive numbers");
  return info.size;
}

}  // namespace

MemoryDataset::MemoryDataset(std::string name, std::span<const FieldView> fields)
    : Dataset(std::move(name), size_of_all(fields), samples_of(fields)) {
  detail::Hash hash;
  CpuContext context({.threads = 1});
  for (const FieldView& field : fields) {
    require<ShapeError>(field.view.shape[0] == size(), this->name(), ": ", field.view.shape[0], " samples in '",
                        name_of(field.field), "' and ", size(), " in '", name_of(fields[0].field),
                        "', expected as many in each");
    std::vector<std::byte>& bytes = data_.emplace_back(field.view.bytes());
    copy(context, field.view, TensorView(bytes.data(), field.view.dtype, Device::cpu(), field.view.shape));
    hash.add(static_cast<std::uint64_t>(field.field));
    for (const std::int64_t extent : field.view.shape) {
      hash.add(static_cast<std::uint64_t>(extent));
    }
    hash.add(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  }
  fingerprint_ = hash.value();
}

void MemoryDataset::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  for (std::size_t i = 0; i < data_.size(); ++i) {
    std::memcpy(out[i].data(), data_[i].data() + static_cast<std::size_t>(index) * out[i].size(), out[i].size());
  }
}

ImageDataset::ImageDataset(DatasetInfo info)
    : Dataset(info.name, checked_size(info),
              {{StateField::images, DType::u8, {info.height, info.width, 3}}, {StateField::labels, DType::i32, {}}}),
      height_(info.height),
      width_(info.width),
      classes_(info.classes) {}

void ImageDataset::read_in(std::int64_t /*epoch*/, std::int64_t index, std::span<std::uint8_t> image) const {
  read(index, image);
}

namespace {

/// Writes the label of an ImageDataset's sample to out[1], and returns out[0], the memory for the image.
std::span<std::uint8_t> image_beside(std::int32_t label, std::span<const std::span<std::byte>> out) {
  std::memcpy(out[1].data(), &label, sizeof label);
  return {reinterpret_cast<std::uint8_t*>(out[0].data()), out[0].size()};
}

}  // namespace

void ImageDataset::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  read(index, image_beside(label(index), out));
}

void ImageDataset::read_sample_in(std::int64_t epoch, std::int64_t index,
                                  std::span<const std::span<std::byte>> out) const {
  read_in(epoch, index, image_beside(label(index), out));
}

PicturePart ImageDataset::read_part(std::optional<std::int64_t> epoch, std::int64_t index, bool /*keep_jpeg*/,
                                    std::span<std::uint8_t> row) const {
  const auto image = row.first(static_cast<std::size_t>(image_bytes()));
  if (epoch) {
    read_in(*epoch, index, image);
  } else {
    read(index, image);
  }
  return detail::whole_image(width(), height());
}

std::string ImageDataset::text_of(std::int64_t index) const {
  return concat(name(), ": sample ", index);
}

std::unique_ptr<DevicePreprocessing> ImageDataset::device_preprocessing(bool keep_jpeg) const {
  return std::make_unique<detail::DeviceImages>(*this, keep_jpeg);
}

bool lies_by_class(const ImageDataset& dataset) {
  std::vector<std::int64_t> images(static_cast<std::size_t>(dataset.classes()));
  std::int64_t changes = 0;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    ++images[static_cast<std::size_t>(dataset.label(i))];
    changes += i > 0 && dataset.label(i) != dataset.label(i - 1) ? 1 : 0;
  }
  const auto size = static_cast<double>(dataset.size());
  double same = 0;  // probability that two random samples have the same class
  for (const std::int64_t count : images) {
    same += static_cast<double>(count) / size * static_cast<double>(count) / size;
  }
  return static_cast<double>(changes) < 0.5 * (1 - same) * size;
}

bool chunks_separate_classes(const ImageDataset& dataset, std::int64_t chunk) {
  const std::int64_t window = Sampler::kWindowChunks;
  if (chunk <= 1 || dataset.size() / chunk < 2 * window) {  // fewer than two windows, or chunks of one sample
    return false;
  }
  const std::int64_t in_chunk = std::max<std::int64_t>(1, chunk * dataset.classes() / dataset.size());
  return 2 * window * in_chunk < dataset.classes() && lies_by_class(dataset);
}

ChannelStatistics channel_statistics(const ImageDataset& dataset, std::int64_t samples) {
  const std::int64_t count = std::clamp<std::int64_t>(samples, 1, dataset.size());
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset.image_bytes()));
  // 2^64 / 255^2 is more than 10^14 pixels, so the sums cannot overflow.
  std::array<std::uint64_t, 3> sum{};
  std::array<std::uint64_t, 3> sum_of_squares{};
  for (std::int64_t i = 0; i < count; ++i) {
    // Equals i * size / count, but avoids the product i * size, which could overflow.
    const std::int64_t index = dataset.size() / count * i + dataset.size() % count * i / count;
    dataset.read(index, image);
    for (std::size_t p = 0; p < image.size(); p += 3) {
      for (std::size_t c = 0; c < 3; ++c) {
        const std::uint64_t value = image[p + c];
        sum[c] += value;
        sum_of_squares[c] += value * value;
      }
    }
  }
  const double pixels = static_cast<double>(count) * static_cast<double>(dataset.image_bytes()) / 3.0;
  ChannelStatistics result;
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = static_cast<double>(sum[c]) / pixels;
    const double variance = static_cast<double>(sum_of_squares[c]) / pixels - mean * mean;
    result.mean[c] = static_cast<float>(mean / 255.0);
    // The computed variance of a constant channel is only a rounding error; the deviation is then set to 1.
    result.std[c] = variance > 1e-6 ? static_cast<float>(std::sqrt(variance) / 255.0) : 1.0F;
  }
  return result;
}

namespace detail {

void Hash::add(std::uint64_t word) {
  state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ULL;
  state_ ^= state_ >> 32;
}

void Hash::add(std::span<const std::uint8_t> bytes) {
  add(bytes.size());
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    add(word);
  }
  std::uint64_t rest = 0;
  for (; i < bytes.size(); ++i) {
    rest = rest << 8 | bytes[i];
  }
  add(rest);
}

StoredImages::StoredImages(DatasetInfo info, int channels, std::vector<std::uint8_t> pixels,
                           std::vector<std::uint8_t> labels)
    : ImageDataset(std::move(info)), channels_(channels), pixels_(std::move(pixels)), labels_(std::move(labels)) {
  Hash hash;
  for (const std::int64_t number : {size(), height(), width(), std::int64_t{classes()}, std::int64_t{channels}}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  hash.add(pixels_);
  hash.add(labels_);
  fingerprint_ = hash.value();
}

std::int32_t StoredImages::label(std::int64_t index) const {
  return labels_[static_cast<std::size_t>(index)];
}

void StoredImages::read(std::int64_t index, std::span<std::uint8_t> image) const {
  const auto pixels = static_cast<std::size_t>(height() * width());
  const std::uint8_t* from =
      pixels_.data() + static_cast<std::size_t>(index) * pixels * static_cast<unsigned>(channels_);
  if (channels_ == 3) {
    std::memcpy(image.data(), from, pixels * 3);
    return;
  }
  for (std::size_t p = 0; p < pixels; ++p) {
    image[3 * p] = image[3 * p + 1] = image[3 * p + 2] = from[p];
  }
}

}  // namespace detail
}  // namespace lockstep::nn

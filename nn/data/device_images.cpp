#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <lockstep/kernels/adjust_colours.hpp>
#include <lockstep/kernels/resized_crop.hpp>
#include <lockstep/nn/data/detail/augmentation.hpp>
#include <lockstep/nn/data/detail/device_images.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {
namespace {

std::vector<SampleField> fields_of(const ImageDataset& images, bool mixes) {
  const std::int64_t pictures = mixes ? 2 : 1;
  std::vector<SampleField> fields{{StateField::pictures, DType::u8, {pictures, images.part_bytes()}},
                                  {StateField::picture_work, DType::f64, {pictures, WorkColumns::kColumns}},
                                  {StateField::labels, DType::i32, {}}};
  add_labels_of_mixtures(mixes, fields);
  return fields;
}

void put_axis(const PicturePart::Axis& axis, std::span<double> columns) {
  columns[0] = axis.begin;
  columns[1] = axis.step;
  columns[2] = static_cast<double>(axis.low);
  columns[3] = static_cast<double>(axis.high);
}

void put_part(const PicturePart& part, std::span<double> work) {
  using ops::PartColumn;
  const auto column = [work](PartColumn which) {
    return work.subspan(WorkColumns::kPart + static_cast<std::size_t>(which));
  };
  column(PartColumn::width)[0] = static_cast<double>(part.width);
  column(PartColumn::height)[0] = static_cast<double>(part.height);
  column(PartColumn::left)[0] = static_cast<double>(part.left);
  column(PartColumn::top)[0] = static_cast<double>(part.top);
  column(PartColumn::transposed)[0] = part.transposed ? 1 : 0;
  put_axis(part.x, column(PartColumn::x_begin));
  put_axis(part.y, column(PartColumn::y_begin));
  work[WorkColumns::kFile] = static_cast<double>(part.file_bytes);
}

/// Throws UsageError unless the part that read_part() returned, `part`, fits into a row of host memory, and its pixels
/// fit into a row of device memory.
void require_part(const ImageDataset& images, std::int64_t index, const PicturePart& part, bool keep_jpeg) {
  constexpr std::int64_t kMostSide = std::int64_t{1} << 27;
  const bool sides = part.width >= 1 && part.width <= kMostSide && part.height >= 1 && part.height <= kMostSide;
  const std::int64_t pixels = sides ? part.width * part.height * 3 : 0;
  const std::int64_t most = part.file_bytes > 0 ? images.decoded_bytes() : images.part_bytes();
  const std::int64_t most_file = keep_jpeg ? images.part_bytes() : 0;
  const bool file = part.file_bytes >= 0 && part.file_bytes <= most_file;
  if (sides && pixels <= most && file) {
    return;
  }
  const std::string picture = images.text_of(index);
  require<UsageError>(sides, picture, ": a part of ", part.width, " x ", part.height,
                      " pixels, expected sides of 1 to ", kMostSide);
  require<UsageError>(pixels <= most, picture, ": a part of ", pixels, " bytes, expected at most ", most);
  require<UsageError>(file, picture, ": a file of ", part.file_bytes, " bytes, expected at most ", most_file);
}

void put_changes(std::span<const ops::images::ColourChange> changes, std::span<double> work) {
  using ops::ColourKind;
  constexpr std::array kKinds{ColourKind::brightness, ColourKind::contrast, ColourKind::saturation, ColourKind::hue};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    work[WorkColumns::kChanges + 2 * i] = static_cast<double>(kKinds.at(static_cast<std::size_t>(changes[i].colour)));
    work[WorkColumns::kChanges + 2 * i + 1] = changes[i].factor;
  }
}

}  // namespace

PicturePart whole_image(std::int64_t width, std::int64_t height) {
  return {.width = width, .height = height, .x = {0, 1, 0, width}, .y = {0, 1, 0, height}};
}

DeviceImages::DeviceImages(const ImageDataset& images, bool keep_jpeg)
    : DeviceImages(images, images, nullptr, keep_jpeg) {}

DeviceImages::DeviceImages(const AugmentedImages& images, bool keep_jpeg)
    : DeviceImages(images, images.images(), &images, keep_jpeg) {}

DeviceImages::DeviceImages(const Dataset& whole, const ImageDataset& images, const AugmentedImages* augmented,
                           bool keep_jpeg)
    : DevicePreprocessing(whole.name(), whole.size(),
                          fields_of(images, augmented != nullptr && augmented->options().mixes())),
      whole_(whole),
      images_(images),
      augmented_(augmented),
      options_(augmented != nullptr ? augmented->options() : AugmentationOptions{}),
      keep_jpeg_(keep_jpeg) {}

void DeviceImages::read_picture(std::optional<std::int64_t> epoch, std::int64_t index, std::span<std::uint8_t> row,
                                std::span<double> work) const {
  const bool plain = augmented_ == nullptr || !epoch;
  const PicturePart part =
      plain ? images_.read_part(epoch, index, keep_jpeg_, row) : augmented_->read_part(*epoch, index, keep_jpeg_, row);
  require_part(images_, index, part, keep_jpeg_);
  put_part(part, work);
  if (plain) {
    return;
  }
  if (options_.jitter.any()) {
    thread_local std::vector<ops::images::ColourChange> changes;
    draw_changes(options_.jitter, random_for(options_.seed, Draw::jitter, *epoch, index), changes);
    put_changes(changes, work);
  }
  if (options_.erase > 0) {
    const ops::images::Rectangle erased = draw_erased({images_.width(), images_.height()}, options_.erase,
                                                      random_for(options_.seed, Draw::erase, *epoch, index));
    const std::array<std::int64_t, 4> sides{erased.left, erased.top, erased.right, erased.bottom};
    std::copy(sides.begin(), sides.end(), work.begin() + WorkColumns::kErased);
  }
}

void DeviceImages::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  read(std::nullopt, index, out);
}

void DeviceImages::read_sample_in(std::int64_t epoch, std::int64_t index,
                                  std::span<const std::span<std::byte>> out) const {
  read(epoch, index, out);
}

void DeviceImages::read(std::optional<std::int64_t> epoch, std::int64_t index,
                        std::span<const std::span<std::byte>> out) const {
  const std::span rows(reinterpret_cast<std::uint8_t*>(out[0].data()), out[0].size());
  const auto row = static_cast<std::size_t>(row_bytes());
  std::array<double, 2 * std::size_t{WorkColumns::kColumns}> table{};
  const std::span<double> work(table);
  read_picture(epoch, index, rows.first(row), work.first(WorkColumns::kColumns));
  if (!options_.mixes()) {
    put_labels(images_.label(index), 0, 1, out.subspan(2));
  } else {
    AugmentedImages::Mixture mixture{.other = index};
    if (epoch) {
      mixture = augmented_->mixture(*epoch, index);
      read_picture(epoch, mixture.other, rows.subspan(row, row), work.subspan(WorkColumns::kColumns));
    }
    const auto share = static_cast<float>(mixture.share);
    const std::array<double, 6> columns{
        mixture.cut ? 1.0 : 0.0,          static_cast<double>(share),         static_cast<double>(mixture.left),
        static_cast<double>(mixture.top), static_cast<double>(mixture.right), static_cast<double>(mixture.bottom)};
    std::copy(columns.begin(), columns.end(), work.begin() + WorkColumns::kMixture);
    put_labels(images_.label(index), images_.label(mixture.other), share, out.subspan(2));
  }
  std::memcpy(out[1].data(), table.data(), out[1].size());
}

}  // namespace lockstep::nn::detail

// Turns pictures into images of one size: decodes, crops and resizes pictures, and turns them as EXIF says.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <lockstep/nn/data/detail/device_images.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/images/crop.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn {
namespace {

constexpr std::int64_t kMostSide = 4096;

/// Memory that a thread allocates once and uses for all pictures.
struct Scratch {
  std::vector<std::uint8_t> file;
  images::Picture picture;
  images::ResampleMemory resample;
};

Scratch& own_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

/// Frees the memory that a large picture took.
void keep_little(Scratch& scratch) {
  detail::keep_little(scratch.file);
  detail::keep_little(scratch.picture.pixels);
  detail::keep_little(scratch.resample.rows);
}

}  // namespace

namespace detail {

PictureImages::PictureImages(const std::string& name, std::unique_ptr<const Pictures> pictures, int classes,
                             const FolderOptions& options, std::uint64_t seed, bool random, std::uint64_t kind)
    : ImageDataset({name, pictures->size(), options.image_size, options.image_size, classes}),
      pictures_(std::move(pictures)),
      resize_(options.resize),
      crop_(options.crop),
      seed_(seed),
      random_(random),
      flip_(options.flip) {
  Hash hash;
  for (const std::int64_t number :
       {height(), resize_, std::int64_t{classes}, std::int64_t{random_}, std::int64_t{random_ && flip_}}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  hash.add(random_ ? seed_ : 0);
  if (random_ && crop_ != CropOptions{}) {
    for (const double number : {crop_.area[0], crop_.area[1], crop_.ratio[0], crop_.ratio[1]}) {
      hash.add(std::bit_cast<std::uint64_t>(number));
    }
  }
  if (kind != 0) {
    hash.add(kind);
  }
  for (std::int64_t i = 0; i < pictures_->size(); ++i) {
    const std::string_view file = pictures_->name(i);
    hash.add(static_cast<std::uint64_t>(pictures_->label(i)));
    hash.add(std::span(reinterpret_cast<const std::uint8_t*>(file.data()), file.size()));
  }
  fingerprint_ = hash.value();
}

std::string PictureImages::enlarged_text() const {
  constexpr std::int64_t kSome = 15;
  std::vector<std::int64_t> sides;
  std::vector<std::uint8_t> memory;
  const std::int64_t some = std::min(kSome, size());
  for (std::int64_t i = 0; i < some; ++i) {
    try {
      const images::Header header = pictures_->open(i * size() / some, memory).header;
      sides.push_back(std::min(header.width, header.height));
    } catch (const DataError&) {  // a later read of the picture's pixels reports this error
      continue;
    }
  }
  const auto middle = sides.begin() + static_cast<std::ptrdiff_t>(sides.size() / 2);
  std::nth_element(sides.begin(), middle, sides.end());
  return middle == sides.end() || *middle >= height()
             ? ""
             : concat("; enlarged, as most have a shorter side of ", *middle, " pixels");
}

PictureImages::Placed PictureImages::place(std::optional<std::int64_t> epoch, std::int64_t index,
                                           std::vector<std::uint8_t>& memory) const {
  Placed placed{.opened = pictures_->open(index, memory)};
  const images::Header& header = placed.opened.header;

  // EXIF's orientations 5 to 8 exchange rows and columns. After that, one axis or both may be mirrored.
  const int turn = header.orientation;
  placed.transposed = turn >= 5;
  const bool mirrored_x = turn == 2 || turn == 3 || turn == 7 || turn == 8;
  const bool mirrored_y = turn == 3 || turn == 4 || turn == 6 || turn == 7;
  const std::int64_t width = placed.transposed ? header.height : header.width;
  const std::int64_t height = placed.transposed ? header.width : header.height;
  images::View view = images::centre_crop({width, height}, resize_, this->height());
  if (epoch && random_) {
    Random random(seed_, RandomUse::augment, static_cast<std::uint64_t>(*epoch), static_cast<std::uint64_t>(index));
    view = images::random_crop({width, height}, {this->width(), this->height()}, crop_, random);
    if (flip_ && random.below(2) == 1) {
      view = images::mirrored(view, this->width());
    }
  }
  // Converts the axes of the turned picture to those of the stored picture.
  placed.x = placed.transposed ? view.y : view.x;
  placed.y = placed.transposed ? view.x : view.y;
  placed.x = mirrored_x ? images::mirrored(placed.x, header.width) : placed.x;
  placed.y = mirrored_y ? images::mirrored(placed.y, header.height) : placed.y;
  placed.shrink = placed.opened.decoded ? 1 : shrink_for(view.x.step, view.y.step);
  return placed;
}

namespace {

/// Returns the pixels of a placed picture. If the picture is a file, decodes it and converts the axes to its decoded
/// pixels.
template <class Placed>
images::PixelView decoded(Placed& placed, Scratch& scratch) {
  const images::Header& header = placed.opened.header;
  if (placed.opened.decoded) {
    return {header.width, header.height, placed.opened.bytes.data()};
  }
  images::Picture& picture = scratch.picture;
  images::decode(placed.opened.bytes, placed.opened.text, header, placed.shrink, picture);
  placed.x = shrunk(placed.x, picture.shrink, picture.width);
  placed.y = shrunk(placed.y, picture.shrink, picture.height);
  return images::view_of(picture);
}

}  // namespace

void PictureImages::read(std::int64_t index, std::optional<std::int64_t> epoch, std::span<std::uint8_t> image) const {
  Scratch& scratch = own_scratch();
  Placed placed = place(epoch, index, scratch.file);
  const images::PixelView pixels = decoded(placed, scratch);
  images::resample(pixels, placed.x, placed.y, {width(), height()}, placed.transposed, scratch.resample, image);
  keep_little(scratch);
}

PicturePart PictureImages::read_part(std::optional<std::int64_t> epoch, std::int64_t index, bool keep_jpeg,
                                     std::span<std::uint8_t> row) const {
  Scratch& scratch = own_scratch();
  Placed placed = place(epoch, index, scratch.file);
  const Pictures::Opened& opened = placed.opened;
  const auto part_of = [&placed](const images::PixelView& given) {
    return PicturePart{.width = given.width,
                       .height = given.height,
                       .left = given.left,
                       .top = given.top,
                       .transposed = placed.transposed,
                       .x = {placed.x.begin, placed.x.step, placed.x.low, placed.x.high},
                       .y = {placed.y.begin, placed.y.step, placed.y.low, placed.y.high}};
  };
  if (keep_jpeg && !opened.decoded && opened.header.format == images::Format::jpeg &&
      opened.bytes.size() <= row.size() && opened.header.width * opened.header.height * 3 <= decoded_bytes() &&
      images::plain_jpeg(opened.bytes, opened.text)) {
    std::copy(opened.bytes.begin(), opened.bytes.end(), row.begin());
    PicturePart part = part_of({opened.header.width, opened.header.height});
    part.file_bytes = static_cast<std::int64_t>(opened.bytes.size());
    return part;
  }
  const images::PixelView all = decoded(placed, scratch);
  const images::PixelRange across = images::pixels_of(placed.x, placed.transposed ? height() : width());
  const images::PixelRange down = images::pixels_of(placed.y, placed.transposed ? width() : height());
  const images::PixelView part{across.end - across.begin, down.end - down.begin, row.data(), across.begin, down.begin};
  const auto line = static_cast<std::size_t>(part.width * 3);
  PicturePart result = part_of(part);
  if (line * static_cast<std::size_t>(part.height) <= row.size()) {
    for (std::int64_t y = 0; y < part.height; ++y) {
      const std::uint8_t* from = all.pixels + ((part.top + y) * all.width + part.left) * 3;
      std::memcpy(row.data() + static_cast<std::size_t>(y) * line, from, line);
    }
  } else {
    images::resample(all, placed.x, placed.y, {width(), height()}, placed.transposed, scratch.resample,
                     row.first(static_cast<std::size_t>(image_bytes())));
    result = whole_image(width(), height());
  }
  keep_little(scratch);
  return result;
}

std::string PictureImages::text_of(std::int64_t index) const {
  return concat(name(), ": '", pictures_->name(index), '\'');
}

int shrink_for(double step_x, double step_y) {
  const double step = std::min(std::abs(step_x), std::abs(step_y));
  int shrink = 1;
  while (shrink < 8 && step >= 4 * shrink) {
    shrink *= 2;
  }
  return shrink;
}

images::Axis shrunk(const images::Axis& axis, int shrink, std::int64_t extent) {
  return {axis.begin / shrink, axis.step / shrink, axis.low / shrink,
          std::min((axis.high + shrink - 1) / shrink, extent)};
}

void require_decoders(const std::string& data) {
  require<UsageError>(images::available(), "data is '", data,
                      "', and this build reads no JPEG and PNG files, expected one that does: install libjpeg-turbo "
                      "and libpng (apt-get install libjpeg-dev libpng-dev) and configure with -DLOCKSTEP_IMAGES=ON");
}

FolderOptions resolved(FolderOptions options) {
  images::require_crop(options.crop);
  const std::int64_t size = options.image_size;
  require<UsageError>(size >= 1 && size <= kMostSide, "image size is ", size, ", expected 1 to ", kMostSide);
  if (options.resize == 0) {
    options.resize = (size * 256 + 112) / 224;
  }
  require<UsageError>(options.resize >= size && options.resize <= 2 * kMostSide, "resize is ", options.resize,
                      ", expected at least the image size, ", size, ", and at most ", 2 * kMostSide);
  return options;
}

std::string text_of(const FolderOptions& resolved) {
  return concat("resized to ", resolved.resize, " and cropped; ",
                !resolved.random_crops           ? std::string("training images likewise")
                : resolved.crop == CropOptions{} ? std::string("random crops to train on")
                                                 : "random parts to train on, " + images::text_of(resolved.crop));
}

ChannelStatistics imagenet_statistics() {
  return {{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
}

}  // namespace detail
}  // namespace lockstep::nn

#include <lockstep/nn/data/augmented_images.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <lockstep/kernels/detail/image_placement.hpp>
#include <lockstep/kernels/images/colour.hpp>
#include <lockstep/nn/data/detail/augmentation.hpp>
#include <lockstep/nn/data/detail/device_images.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/images/auto_augment.hpp>
#include <lockstep/nn/data/images/crop.hpp>
#include <lockstep/nn/data/images/placement.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {
namespace {

using detail::Draw;
using detail::random_for;

/// Memory that a thread allocates once and uses for all images that it augments.
struct Scratch {
  images::Picture picture;
  images::ResampleMemory resample;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> other;
  std::vector<ops::images::ColourChange> changes;
  std::vector<float> values;
};
Scratch& own_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

using Image = std::span<std::uint8_t>;  // u8 pixels of an image, (H, W, 3)

void resized_part(const images::Extent& size, const CropOptions& crop, Random& random, Image image) {
  Scratch& scratch = own_scratch();
  images::Picture& picture = scratch.picture;
  picture.width = size.width;
  picture.height = size.height;
  picture.pixels.assign(image.begin(), image.end());
  const images::View view = images::random_crop(size, size, crop, random);
  images::resample(images::view_of(picture), view.x, view.y, size, false, scratch.resample, image);
}

/// Pads, crops and mirrors `image` as ops::augment does, with the same random draws and the same resulting pixels.
void place(const images::Extent& size, const AugmentationOptions& options, std::int64_t epoch, std::int64_t index,
           Image image) {
  Random random = random_for(options.seed, Draw::placement, epoch, index);
  images::Placement at;
  if (options.pad > 0) {
    const auto offsets = static_cast<std::uint32_t>(2 * options.pad + 1);
    at.row = static_cast<std::int64_t>(random.below(offsets)) - options.pad;
    at.column = static_cast<std::int64_t>(random.below(offsets)) - options.pad;
  }
  if (options.flip && options.alternate) {
    Random own = random_for(options.seed, Draw::placement, ops::placement::kNoEpoch, index);
    at.mirror = ops::placement::alternating(own.below(2) == 1, epoch);
  } else if (options.flip) {
    at.mirror = random.below(2) == 1;
  }
  if (at.row == 0 && at.column == 0 && !at.mirror) {
    return;
  }
  std::vector<std::uint8_t>& from = own_scratch().bytes;
  from.assign(image.begin(), image.end());
  images::show(size, 3, at, options.reflect ? images::Outside::reflected : images::Outside::black, from.data(),
               image.data());
}

/// Draws a number from Gamma(alpha, 1) and returns its logarithm, because the number itself may be too small for a
/// double. The method is Marsaglia and Tsang, "A simple method for generating gamma variables" (2000): it draws from
/// Gamma(alpha + 1, 1) and multiplies the result by U^(1 / alpha), where U is uniform in (0, 1].
double log_gamma_draw(double alpha, Random& random) {
  const double d = alpha + 1 - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double root = 1 + c * x;
    if (root <= 0) {
      continue;
    }
    const double v = root * root * root;
    if (std::log(1 - random.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v) + std::log(1 - random.uniform()) / alpha;
    }
  }
}

/// Draws a number from Beta(alpha, alpha).
double beta_draw(double alpha, Random& random) {
  const double a = log_gamma_draw(alpha, random);
  const double b = log_gamma_draw(alpha, random);
  return 1 / (1 + std::exp(b - a));
}

void require_in(const char* what, double value, double low, double high) {
  require<UsageError>(value >= low && value <= high, what, " is ", value, ", expected ", low, " to ", high);
}

std::vector<SampleField> fields_of(const std::unique_ptr<ImageDataset>& images, bool mixes) {
  require<UsageError>(images != nullptr, "augmented images: no images are given, expected a set of them");
  std::vector<SampleField> fields(images->fields().begin(), images->fields().end());
  detail::add_labels_of_mixtures(mixes, fields);
  return fields;
}

Image image_in(std::span<std::byte> out) {
  return {reinterpret_cast<std::uint8_t*>(out.data()), out.size()};
}

}  // namespace

void require_augmentation(const AugmentationOptions& o) {
  constexpr double kMostFactor = 100;
  constexpr double kLeastAlpha = 0.01;
  constexpr std::int64_t kMostPad = 4096;
  if (o.crop) {
    images::require_crop(*o.crop);
  }
  require<UsageError>(o.pad >= 0 && o.pad <= kMostPad, "pad is ", o.pad, ", expected 0 to ", kMostPad);
  require<UsageError>(!o.crop || o.pad == 0, "pad is ", o.pad,
                      " and resized parts are on (crop), expected pad 0 or no resized parts");
  require_in("colour jitter: brightness", o.jitter.brightness, 0, kMostFactor);
  require_in("colour jitter: contrast", o.jitter.contrast, 0, kMostFactor);
  require_in("colour jitter: saturation", o.jitter.saturation, 0, kMostFactor);
  require_in("colour jitter: hue", o.jitter.hue, 0, 0.5);
  require_in("random erasing: the probability", o.erase, 0, 1);
  for (const auto& [name, alpha] : {std::pair("mixup", o.mixup), std::pair("cutmix", o.cutmix)}) {
    require<UsageError>(alpha == 0 || (alpha >= kLeastAlpha && alpha <= kMostFactor), name, ": alpha is ", alpha,
                        ", expected 0 (none), or ", kLeastAlpha, " to ", kMostFactor);
  }
}

std::string text_of(const AugmentationOptions& o) {
  std::string text;
  const auto add = [&](const auto&... parts) { text += concat(text.empty() ? "" : ", ", parts...); };
  if (o.crop) {
    add("random parts of ", images::text_of(*o.crop));
  }
  if (o.pad > 0) {
    add("padded by ", o.pad, o.reflect ? " reflected pixels and cropped" : " and cropped");
  }
  if (o.flip) {
    add(o.alternate ? "mirrored in every other epoch" : "mirrored");
  }
  if (o.automatic != AutoAugment::none) {
    add(o.automatic == AutoAugment::trivial ? "TrivialAugmentWide" : "RandAugment of 2 operations, magnitude 9");
  }
  if (o.jitter.any()) {
    add("colour jitter ", exact_text(o.jitter.brightness), ' ', exact_text(o.jitter.contrast), ' ',
        exact_text(o.jitter.saturation), ' ', exact_text(o.jitter.hue));
  }
  if (o.erase > 0) {
    add("erased with probability ", exact_text(o.erase));
  }
  if (o.mixup > 0) {
    add("mixup ", exact_text(o.mixup));
  }
  if (o.cutmix > 0) {
    add("cutmix ", exact_text(o.cutmix));
  }
  return text;
}

AugmentedImages::AugmentedImages(std::unique_ptr<ImageDataset> images, const AugmentationOptions& options)
    : Dataset(images != nullptr ? images->name() : "images", images != nullptr ? images->size() : 1,
              fields_of(images, options.mixes())),
      images_(std::move(images)),
      options_(options) {
  require_augmentation(options_);
  require<UsageError>(!options_.reflect || (options_.pad < images_->height() && options_.pad < images_->width()),
                      "pad is ", options_.pad, " and reflect is on, images are ", images_->height(), " x ",
                      images_->width(), ", expected a pad below both sides of an image");
  detail::Hash hash;
  hash.add(images_->fingerprint());
  hash.add(options_.seed);
  const std::string text = text_of(options_);
  hash.add(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  hash.add(options_.fill);
  fingerprint_ = hash.value();
}

void AugmentedImages::read_placed(std::int64_t epoch, std::int64_t index, Image image) const {
  images_->read_in(epoch, index, image);
  const images::Extent size{images_->width(), images_->height()};
  if (options_.crop) {
    Random draws = random_for(options_.seed, Draw::crop, epoch, index);
    resized_part(size, *options_.crop, draws, image);
  }
  if (options_.pad > 0 || options_.flip) {
    place(size, options_, epoch, index, image);
  }
  if (options_.automatic != AutoAugment::none) {
    Random draws = random_for(options_.seed, Draw::automatic, epoch, index);
    for (const images::Chosen& one : images::choose(options_.automatic, size, draws)) {
      images::apply(one.op, one.magnitude, size, image, own_scratch().bytes);
    }
  }
}

void AugmentedImages::read_unmixed(std::int64_t epoch, std::int64_t index, Image image) const {
  read_placed(epoch, index, image);
  if (options_.jitter.any()) {
    std::vector<ops::images::ColourChange>& changes = own_scratch().changes;
    detail::draw_changes(options_.jitter, random_for(options_.seed, Draw::jitter, epoch, index), changes);
    ops::images::adjust_colours(changes, image, own_scratch().values);
  }
  if (options_.erase > 0) {
    const images::Extent size{images_->width(), images_->height()};
    const Random draws = random_for(options_.seed, Draw::erase, epoch, index);
    const ops::images::Rectangle erased = detail::draw_erased(size, options_.erase, draws);
    ops::images::fill_rectangle(erased, size.width, options_.fill, image.data());
  }
}

PicturePart AugmentedImages::read_part(std::int64_t epoch, std::int64_t index, bool keep_jpeg, Image row) const {
  const bool moved = options_.pad > 0 || options_.flip || options_.automatic != AutoAugment::none;
  if (!moved && !options_.crop) {
    return images_->read_part(epoch, index, keep_jpeg, row);
  }
  const Image image = row.first(static_cast<std::size_t>(images_->image_bytes()));
  PicturePart part = detail::whole_image(images_->width(), images_->height());
  if (moved) {
    read_placed(epoch, index, image);
    return part;
  }
  images_->read_in(epoch, index, image);
  Random draws = random_for(options_.seed, Draw::crop, epoch, index);
  const images::Extent size{images_->width(), images_->height()};
  const images::View view = images::random_crop(size, size, *options_.crop, draws);
  part.x = {view.x.begin, view.x.step, view.x.low, view.x.high};
  part.y = {view.y.begin, view.y.step, view.y.low, view.y.high};
  return part;
}

std::unique_ptr<DevicePreprocessing> AugmentedImages::device_preprocessing(bool keep_jpeg) const {
  return std::make_unique<detail::DeviceImages>(*this, keep_jpeg);
}

AugmentedImages::Mixture AugmentedImages::mixture(std::int64_t epoch, std::int64_t index) const {
  Random random = random_for(options_.seed, Draw::mixture, epoch, index);
  Mixture mixture;
  const auto whole = static_cast<std::uint64_t>(size());
  mixture.other = static_cast<std::int64_t>(
      std::min(static_cast<std::uint64_t>(random.uniform() * static_cast<double>(whole)), whole - 1));
  mixture.cut = options_.cutmix > 0 && (options_.mixup == 0 || random.below(2) == 1);
  const double share = beta_draw(mixture.cut ? options_.cutmix : options_.mixup, random);
  if (!mixture.cut) {
    mixture.share = share;
    return mixture;
  }
  // Each side of the rectangle is sqrt(1 - share) of the image's side. The rectangle's middle is a random pixel of the
  // image, and the image's edges clip the rectangle.
  const double half = 0.5 * std::sqrt(1 - share);
  const auto side = [&](std::int64_t extent, std::int64_t& begin, std::int64_t& end) {
    const std::int64_t middle = random.below(static_cast<std::uint32_t>(extent));
    const auto reach = static_cast<std::int64_t>(half * static_cast<double>(extent));
    begin = std::max<std::int64_t>(middle - reach, 0);
    end = std::min(middle + reach, extent);
  };
  side(images_->width(), mixture.left, mixture.right);
  side(images_->height(), mixture.top, mixture.bottom);
  const std::int64_t covered = (mixture.right - mixture.left) * (mixture.bottom - mixture.top);
  mixture.share = 1 - static_cast<double>(covered) / static_cast<double>(images_->width() * images_->height());
  return mixture;
}

void AugmentedImages::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  images_->read(index, image_in(out[0]));
  detail::put_labels(images_->label(index), images_->label(index), 1, out.subspan(1));
}

void AugmentedImages::read_sample_in(std::int64_t epoch, std::int64_t index,
                                     std::span<const std::span<std::byte>> out) const {
  const Image image = image_in(out[0]);
  read_unmixed(epoch, index, image);
  if (!options_.mixes()) {
    detail::put_labels(images_->label(index), 0, 1, out.subspan(1));
    return;
  }
  const Mixture mix = mixture(epoch, index);
  const auto share = static_cast<float>(mix.share);
  detail::put_labels(images_->label(index), images_->label(mix.other), share, out.subspan(1));
  std::vector<std::uint8_t>& other = own_scratch().other;
  other.resize(image.size());
  read_unmixed(epoch, mix.other, other);
  if (mix.cut) {
    const ops::images::Rectangle shown{mix.left, mix.top, mix.right, mix.bottom};
    ops::images::copy_rectangle(shown, images_->width(), other.data(), image.data());
  } else {
    ops::images::mix(share, image, other.data());
  }
}

}  // namespace lockstep::nn

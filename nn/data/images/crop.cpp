#include <lockstep/nn/data/images/crop.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn::images {
namespace {

Axis part_of(std::int64_t begin, std::int64_t count, std::int64_t size) {
  return {static_cast<double>(begin), static_cast<double>(count) / static_cast<double>(size), begin, begin + count};
}

}  // namespace

View centre_crop(const Extent& picture, std::int64_t resize, std::int64_t size) {
  const std::int64_t shorter = std::min(picture.width, picture.height);
  const auto axis = [&](std::int64_t extent) {
    const std::int64_t resized = resize * extent / shorter;
    const double step = static_cast<double>(extent) / static_cast<double>(resized);
    // nearbyint() rounds half to even, as torchvision does.
    const double left = std::nearbyint(static_cast<double>(resized - size) / 2);
    return Axis{left * step, step, 0, extent};
  };
  return {axis(picture.width), axis(picture.height)};
}

View random_crop(const Extent& picture, const Extent& image, const CropOptions& options, Random& random) {
  constexpr int kTries = 10;
  const std::int64_t width = picture.width;
  const std::int64_t height = picture.height;
  const auto [least, most] = options.area;
  const auto [narrow, wide] = options.ratio;
  const auto area = static_cast<double>(width * height);
  for (int i = 0; i < kTries; ++i) {
    const double part = area * (least + (most - least) * random.uniform());
    const double ratio = std::exp(std::log(narrow) + (std::log(wide) - std::log(narrow)) * random.uniform());
    const std::int64_t w = std::llround(std::sqrt(part * ratio));
    const std::int64_t h = std::llround(std::sqrt(part / ratio));
    if (w > 0 && h > 0 && w <= width && h <= height) {
      const std::int64_t y = random.below(static_cast<std::uint32_t>(height - h + 1));
      const std::int64_t x = random.below(static_cast<std::uint32_t>(width - w + 1));
      return {part_of(x, w, image.width), part_of(y, h, image.height)};
    }
  }
  // No random part fits, because the picture is too narrow or too wide. So the part is the picture's middle.
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  const auto bounded = [](std::int64_t value, std::int64_t upper) { return std::clamp<std::int64_t>(value, 1, upper); };
  const std::int64_t w = ratio > wide ? bounded(std::llround(static_cast<double>(height) * wide), width) : width;
  const std::int64_t h = ratio < narrow ? bounded(std::llround(static_cast<double>(width) / narrow), height) : height;
  return {part_of((width - w) / 2, w, image.width), part_of((height - h) / 2, h, image.height)};
}

void require_crop(const CropOptions& options) {
  const auto [least, most] = options.area;
  require<UsageError>(least > 0 && least <= most && most <= 1, "random parts have ", least, " to ", most,
                      " of the area, expected 0 < least <= most <= 1");
  const auto [narrow, wide] = options.ratio;
  require<UsageError>(narrow > 0 && narrow <= wide && std::isfinite(wide), "random parts have sides of ratio ", narrow,
                      " to ", wide, ", expected 0 < least <= most");
}

std::string text_of(const CropOptions& options) {
  return concat(exact_text(options.area[0]), " to ", exact_text(options.area[1]), " of the area, ratios ",
                exact_text(options.ratio[0]), " to ", exact_text(options.ratio[1]));
}

View mirrored(const View& view, std::int64_t width) {
  return {{view.x.begin + static_cast<double>(width) * view.x.step, -view.x.step, view.x.low, view.x.high}, view.y};
}

}  // namespace lockstep::nn::images

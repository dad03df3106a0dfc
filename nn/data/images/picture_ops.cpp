#include <lockstep/nn/data/images/picture_ops.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numbers>

namespace lockstep::nn::images {
namespace {

using Image = std::span<std::uint8_t>;
using Table = std::array<std::uint8_t, 256>;

constexpr std::size_t kChannels = 3;

/// Blends two bytes as torchvision's _blend does: ratio * value + (1 - ratio) * other, limited to the range 0 to 255,
/// then cut off to an integer.
struct Blend {
  explicit Blend(double ratio) : part(static_cast<float>(ratio)), rest(static_cast<float>(1 - ratio)) {}
  [[nodiscard]] std::uint8_t operator()(std::uint8_t value, float other) const {
    const float sum = part * static_cast<float>(value) + rest * other;
    return static_cast<std::uint8_t>(std::clamp(sum, 0.0F, 255.0F));
  }
  float part;
  float rest;
};

template <class Function>
Table table_of(Function&& function) {
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = function(static_cast<std::uint8_t>(i));
  }
  return table;
}

void look_up(const Table& table, Image image) {
  std::transform(image.begin(), image.end(), image.begin(), [&](std::uint8_t value) { return table[value]; });
}

/// Returns a pixel's grey value: the weights of ITU-R 601 with torchvision's digits; the sum is cut off to a byte.
std::uint8_t grey(const std::uint8_t* pixel) {
  const float sum = 0.2989F * static_cast<float>(pixel[0]) + 0.587F * static_cast<float>(pixel[1]) +
                    0.114F * static_cast<float>(pixel[2]);
  return static_cast<std::uint8_t>(sum);
}

/// Affine map from pixel (x, y) of the result to its source: (xx * x + xy * y + x0, yx * x + yy * y + y0).
struct Source {
  double xx = 1, xy = 0, x0 = 0;
  double yx = 0, yy = 1, y0 = 0;
};

void move_pixels(const Source& from, const Extent& size, Image image, std::vector<std::uint8_t>& copy) {
  constexpr double kNearest = 0.5 + 1e-6;  // 1e-6 hides rounding errors of sine and cosine
  copy.assign(image.begin(), image.end());
  std::uint8_t* to = image.data();
  for (std::int64_t y = 0; y < size.height; ++y) {
    const double row_x = from.xy * static_cast<double>(y) + from.x0 + kNearest;
    const double row_y = from.yy * static_cast<double>(y) + from.y0 + kNearest;
    for (std::int64_t x = 0; x < size.width; ++x, to += kChannels) {
      const double source_x = from.xx * static_cast<double>(x) + row_x;
      const double source_y = from.yx * static_cast<double>(x) + row_y;
      if (source_x >= 0 && source_x < static_cast<double>(size.width) && source_y >= 0 &&
          source_y < static_cast<double>(size.height)) {
        const std::int64_t pixel =
            static_cast<std::int64_t>(source_y) * size.width + static_cast<std::int64_t>(source_x);
        std::memcpy(to, copy.data() + static_cast<std::size_t>(pixel) * kChannels, kChannels);
      } else {
        std::memset(to, 0, kChannels);
      }
    }
  }
}

void rotate(double degrees, const Extent& size, Image image, std::vector<std::uint8_t>& copy) {
  const double turn = -degrees * std::numbers::pi / 180;
  const double cosine = std::cos(turn);
  const double sine = std::sin(turn);
  const double middle_x = static_cast<double>(size.width - 1) / 2;
  const double middle_y = static_cast<double>(size.height - 1) / 2;
  move_pixels({.xx = cosine,
               .xy = sine,
               .x0 = middle_x - cosine * middle_x - sine * middle_y,
               .yx = -sine,
               .yy = cosine,
               .y0 = middle_y + sine * middle_x - cosine * middle_y},
              size, image, copy);
}

void change_colour(const Blend& blend, Image image) {
  for (std::size_t i = 0; i < image.size(); i += kChannels) {
    const auto other = static_cast<float>(grey(&image[i]));
    for (std::size_t c = 0; c < kChannels; ++c) {
      image[i + c] = blend(image[i + c], other);
    }
  }
}

void change_contrast(const Blend& blend, Image image) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < image.size(); i += kChannels) {
    sum += grey(&image[i]);
  }
  const auto pixels = static_cast<float>(std::max<std::size_t>(image.size() / kChannels, 1));
  const float mean = static_cast<float>(sum) / pixels;
  look_up(table_of([&](std::uint8_t value) { return blend(value, mean); }), image);
}

/// Blends `image` with a 3 x 3 blur of weight 5 in the middle and 1 elsewhere. Border pixels do not change.
void change_sharpness(const Blend& blend, const Extent& size, Image image, std::vector<std::uint8_t>& copy) {
  if (size.width <= 2 || size.height <= 2) {
    return;
  }
  copy.assign(image.begin(), image.end());
  const std::ptrdiff_t row = size.width * static_cast<std::ptrdiff_t>(kChannels);
  const std::uint8_t* from = copy.data();
  std::uint8_t* to = image.data();
  for (std::int64_t y = 0; y < size.height; ++y) {
    for (std::int64_t x = 0; x < size.width; ++x) {
      const bool inside = x > 0 && x + 1 < size.width && y > 0 && y + 1 < size.height;
      for (std::size_t c = 0; c < kChannels; ++c, ++from, ++to) {
        int other = *from;
        if (inside) {
          constexpr std::ptrdiff_t kPixel = kChannels;
          int sum = 4 * other;
          for (const std::ptrdiff_t line : {-row, std::ptrdiff_t{0}, row}) {
            sum += from[line - kPixel] + from[line] + from[line + kPixel];
          }
          constexpr int kWeights = 13;
          other = (2 * sum + kWeights) / (2 * kWeights);  // rounds to the nearest; ties do not occur
        }
        *to = blend(*from, static_cast<float>(other));
      }
    }
  }
}

/// Maps each channel's bytes through the table that function(histogram of the channel) returns.
template <class Function>
void each_channel(Image image, Function&& function) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    std::array<std::int64_t, 256> histogram{};
    for (std::size_t i = c; i < image.size(); i += kChannels) {
      ++histogram[image[i]];
    }
    const Table table = function(histogram);
    for (std::size_t i = c; i < image.size(); i += kChannels) {
      image[i] = table[image[i]];
    }
  }
}

using Histogram = std::array<std::int64_t, 256>;

Table stretched(const Histogram& histogram) {
  const auto there = [](std::int64_t count) { return count > 0; };
  const auto least = std::find_if(histogram.begin(), histogram.end(), there) - histogram.begin();
  const auto most = 255 - (std::find_if(histogram.rbegin(), histogram.rend(), there) - histogram.rbegin());
  return table_of([&](std::uint8_t value) {
    if (most <= least) {
      return value;
    }
    const float scale = 255.0F / static_cast<float>(most - least);
    const float shifted = (static_cast<float>(value) - static_cast<float>(least)) * scale;
    return static_cast<std::uint8_t>(std::clamp(shifted, 0.0F, 255.0F));
  });
}

/// Returns the table of Pillow's equalize, which leaves out the pixels of the highest value that occurs.
Table equalized(const Histogram& histogram) {
  const auto last = std::find_if(histogram.rbegin(), histogram.rend(), [](std::int64_t count) { return count > 0; });
  std::int64_t all = last == histogram.rend() ? 0 : -*last;
  for (const std::int64_t count : histogram) {
    all += count;
  }
  const std::int64_t step = all / 255;
  std::int64_t below = 0;
  return table_of([&](std::uint8_t value) {
    const std::int64_t level =
        step == 0 ? value : std::min<std::int64_t>((below + step / 2) / std::max(step, std::int64_t{1}), 255);
    below += histogram[value];
    return static_cast<std::uint8_t>(level);
  });
}

}  // namespace

const char* name_of(PictureOp op) {
  constexpr std::array<const char*, kPictureOps> kNames{
      "Identity", "ShearX",   "ShearY",    "TranslateX", "TranslateY", "Rotate",       "Brightness",
      "Color",    "Contrast", "Sharpness", "Posterize",  "Solarize",   "AutoContrast", "Equalize"};
  return kNames.at(static_cast<std::size_t>(op));
}

void apply(PictureOp op, double magnitude, const Extent& size, Image image, std::vector<std::uint8_t>& copy) {
  const Blend blend(1 + magnitude);
  switch (op) {
    case PictureOp::identity:
      break;
    case PictureOp::shear_x:
      move_pixels({.xy = magnitude, .x0 = magnitude / 2}, size, image, copy);
      break;
    case PictureOp::shear_y:
      move_pixels({.yx = magnitude, .y0 = magnitude / 2}, size, image, copy);
      break;
    case PictureOp::translate_x:
      move_pixels({.x0 = -std::trunc(magnitude)}, size, image, copy);
      break;
    case PictureOp::translate_y:
      move_pixels({.y0 = -std::trunc(magnitude)}, size, image, copy);
      break;
    case PictureOp::rotate:
      rotate(magnitude, size, image, copy);
      break;
    case PictureOp::brightness:
      look_up(table_of([&](std::uint8_t value) { return blend(value, 0); }), image);
      break;
    case PictureOp::color:
      change_colour(blend, image);
      break;
    case PictureOp::contrast:
      change_contrast(blend, image);
      break;
    case PictureOp::sharpness:
      change_sharpness(blend, size, image, copy);
      break;
    case PictureOp::posterize: {
      const int mask = -(1 << (8 - static_cast<int>(magnitude)));
      look_up(table_of([&](std::uint8_t value) { return static_cast<std::uint8_t>(value & mask); }), image);
      break;
    }
    case PictureOp::solarize:
      look_up(table_of([&](std::uint8_t value) {
                return static_cast<std::uint8_t>(static_cast<double>(value) >= magnitude ? 255 - value : value);
              }),
              image);
      break;
    case PictureOp::autocontrast:
      each_channel(image, stretched);
      break;
    case PictureOp::equalize:
      each_channel(image, equalized);
      break;
  }
}

}  // namespace lockstep::nn::images

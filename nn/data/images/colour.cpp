#include <lockstep/nn/data/images/colour.hpp>

#include <algorithm>
#include <array>

namespace lockstep::nn::images {
namespace {

float clamped(float value) {
  return std::clamp(value, 0.0F, 1.0F);
}

/// ITU-R 601, with the digits of torchvision.
float grey(const float* pixel) {
  return 0.2989F * pixel[0] + 0.587F * pixel[1] + 0.114F * pixel[2];
}

/// factor * value + (1 - factor) * other
struct Blend {
  explicit Blend(double factor) : part(static_cast<float>(factor)), rest(static_cast<float>(1 - factor)) {}
  [[nodiscard]] float operator()(float value, float other) const { return clamped(part * value + rest * other); }
  float part;
  float rest;
};

struct Hsv {
  float hue = 0;  ///< in [0, 1)
  float saturation = 0;
  float value = 0;
};

Hsv hsv_of(float r, float g, float b) {
  const float most = std::max({r, g, b});
  const float range = most - std::min({r, g, b});
  if (range == 0) {
    return {0, 0, most};
  }
  const float from_red = (most - r) / range;
  const float from_green = (most - g) / range;
  const float from_blue = (most - b) / range;
  const float sixths = most == r   ? from_blue - from_green
                       : most == g ? 2 + from_red - from_blue
                                   : 4 + from_green - from_red;
  const float turns = sixths / 6 + 1;  // 5/6 to 11/6
  return {turns >= 1 ? turns - 1 : turns, range / most, most};
}

std::array<float, 3> rgb_of(const Hsv& hsv) {
  const float sixths = hsv.hue * 6;
  const int whole = static_cast<int>(sixths);
  const float rest = sixths - static_cast<float>(whole);
  const float v = hsv.value;
  const float p = clamped(v * (1 - hsv.saturation));
  const float q = clamped(v * (1 - hsv.saturation * rest));
  const float t = clamped(v * (1 - hsv.saturation * (1 - rest)));
  switch (whole % 6) {
    case 0:
      return {v, t, p};
    case 1:
      return {q, v, p};
    case 2:
      return {p, v, t};
    case 3:
      return {p, q, v};
    case 4:
      return {t, p, v};
    default:
      return {v, p, q};
  }
}

}  // namespace

void adjust_brightness(std::span<float> pixels, double factor) {
  const Blend blend(factor);
  for (float& value : pixels) {
    value = blend(value, 0);
  }
}

void adjust_contrast(std::span<float> pixels, double factor) {
  double sum = 0;
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    sum += static_cast<double>(grey(&pixels[i]));
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(std::max<std::size_t>(pixels.size() / 3, 1)));
  const Blend blend(factor);
  for (float& value : pixels) {
    value = blend(value, mean);
  }
}

void adjust_saturation(std::span<float> pixels, double factor) {
  const Blend blend(factor);
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    const float other = grey(&pixels[i]);
    for (std::size_t c = 0; c < 3; ++c) {
      pixels[i + c] = blend(pixels[i + c], other);
    }
  }
}

void adjust_hue(std::span<float> pixels, double turn) {
  const auto by = static_cast<float>(turn);
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    Hsv hsv = hsv_of(pixels[i], pixels[i + 1], pixels[i + 2]);
    hsv.hue += by;  // -0.5 to 1.5
    hsv.hue += hsv.hue < 0 ? 1.0F : (hsv.hue >= 1 ? -1.0F : 0.0F);
    const std::array<float, 3> rgb = rgb_of(hsv);
    std::copy(rgb.begin(), rgb.end(), &pixels[i]);
  }
}

}  // namespace lockstep::nn::images

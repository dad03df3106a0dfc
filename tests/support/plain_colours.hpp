#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/kernels/images/colour.hpp>

/// Changes colours with plain loops, one pixel at a time. This code is the oracle of images::adjust_colours()
/// and of ops::adjust_colours().
namespace lockstep::testing {

/// Returns the value after it was stored. The store keeps the compiler from contracting a product and a sum, so each is
/// rounded.
inline float rounded(float value) {
  volatile float stored = value;
  return stored;
}

inline float plain_grey(const float* pixel) {
  const float red_and_green = rounded(rounded(0.2989F * pixel[0]) + rounded(0.587F * pixel[1]));
  return rounded(red_and_green + rounded(0.114F * pixel[2]));
}

inline float plain_blend(double factor, float value, float other) {
  const float sum =
      rounded(rounded(static_cast<float>(factor) * value) + rounded(static_cast<float>(1 - factor) * other));
  return std::clamp(sum, 0.0F, 1.0F);
}

/// Rotates the hue of a pixel. turn: angle as a fraction of the colour circle. Converts the pixel to hue, saturation
/// and value, changes the hue, and converts back. The formula for the way back depends on the sixth of the circle in
/// which the hue is.
inline void plain_hue(float* pixel, double turn) {
  const float r = pixel[0];
  const float g = pixel[1];
  const float b = pixel[2];
  const float v = std::max({r, g, b});
  const float range = v - std::min({r, g, b});
  float hue = 0;
  float saturation = 0;
  if (range > 0) {
    const float from_red = (v - r) / range;
    const float from_green = (v - g) / range;
    const float from_blue = (v - b) / range;
    const float sixths = v == r   ? from_blue - from_green
                         : v == g ? 2 + from_red - from_blue
                                  : 4 + from_green - from_red;
    hue = rounded(sixths / 6) + 1;
    hue = hue >= 1 ? hue - 1 : hue;
    saturation = range / v;
  }
  hue += static_cast<float>(turn);
  hue += hue < 0 ? 1.0F : (hue >= 1 ? -1.0F : 0.0F);
  const float sixths = rounded(hue * 6);
  const int whole = static_cast<int>(sixths);
  const float rest = sixths - static_cast<float>(whole);
  const auto lowered = [&](float part) { return rounded(v * rounded(1 - rounded(saturation * part))); };
  const float p = lowered(1);
  const float q = lowered(rest);
  const float t = lowered(rounded(1 - rest));
  constexpr int kSixths = 6;
  const std::array<std::array<float, 3>, kSixths> all{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::copy_n(all[static_cast<std::size_t>(whole % kSixths)].begin(), 3, pixel);
}

/// Applies one change to all pixels, an array of shape (pixels, 3).
inline void plain_change(const ops::images::ColourChange& change, std::vector<float>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); i += 3) {
    sum += std::floor(std::ldexp(static_cast<double>(plain_grey(&values[i])), 30));
  }
  const auto mean = static_cast<float>(std::ldexp(sum, -30) / static_cast<double>(values.size() / 3));
  for (std::size_t i = 0; i < values.size(); i += 3) {
    const float grey = plain_grey(&values[i]);
    for (std::size_t c = 0; c < 3 && change.colour != ops::images::Colour::hue; ++c) {
      const float other = change.colour == ops::images::Colour::brightness ? 0
                          : change.colour == ops::images::Colour::contrast ? mean
                                                                           : grey;
      values[i + c] = plain_blend(change.factor, values[i + c], other);
    }
    if (change.colour == ops::images::Colour::hue) {
      plain_hue(&values[i], change.factor);
    }
  }
}

inline std::uint8_t plain_byte(float value) {
  return static_cast<std::uint8_t>(rounded(rounded(value * 255) + 0.5F));
}

}  // namespace lockstep::testing

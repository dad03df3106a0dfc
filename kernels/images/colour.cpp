#include <lockstep/kernels/images/colour.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <lockstep/kernels/images/four.hpp>

namespace lockstep::ops::images {
namespace {

constexpr Four k0{};
constexpr Four k1 = {1, 1, 1, 1};
constexpr Four k2 = {2, 2, 2, 2};
constexpr Four k4 = {4, 4, 4, 4};

/// The number of pixels of a block. A block is a part of an image, with a plane for each channel, and stays in the
/// first-level cache during all changes. If the image ends within a block, black pixels fill the block up; changes are
/// applied to the black pixels, too.
constexpr std::size_t kPixels = 256;
using Plane = std::array<float, kPixels>;
using Block = std::array<Plane, 3>;

Four four_at(const Plane& plane, std::size_t at) {
  return four(plane.data() + at);
}

void put(Plane& plane, std::size_t at, Four value) {
  std::memcpy(plane.data() + at, &value, sizeof value);
}

// The intrinsics of minps and maxps are called because g++ 12 compiles `a < b ? a : b` to five instructions if a or b
// is a constant.
Four smaller(Four a, Four b) {
#if defined(__SSE__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

Four larger(Four a, Four b) {
#if defined(__SSE__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

Four clamped(Four value) {
  return smaller(larger(value, k0), k1);
}

/// Returns the grey values of the four pixels from `at` on. The weights are those of ITU-R 601, with torchvision's
/// digits.
Four grey(const Block& block, std::size_t at) {
  return 0.2989F * four_at(block[0], at) + 0.587F * four_at(block[1], at) + 0.114F * four_at(block[2], at);
}

/// The function factor * value + (1 - factor) * other, clamped to [0, 1].
struct Blend {
  explicit Blend(double factor) : part(static_cast<float>(factor)), rest(static_cast<float>(1 - factor)) {}
  [[nodiscard]] Four operator()(Four value, Four other) const { return clamped(part * value + rest * other); }
  float part;
  float rest;
};

void blend_with(Block& block, const Blend& blend, float other) {
  for (Plane& plane : block) {
    for (std::size_t i = 0; i < kPixels; i += 4) {
      put(plane, i, blend(four_at(plane, i), k0 + other));
    }
  }
}

void saturate(Block& block, const Blend& blend) {
  for (std::size_t i = 0; i < kPixels; i += 4) {
    const Four other = grey(block, i);
    for (Plane& plane : block) {
      put(plane, i, blend(four_at(plane, i), other));
    }
  }
}

/// Turns the hue of all pixels by `by`. Converts each pixel to hue, saturation and value, and back.
void turn_hue(Block& block, float by) {
  for (std::size_t i = 0; i < kPixels; i += 4) {
    const Four r = four_at(block[0], i);
    const Four g = four_at(block[1], i);
    const Four b = four_at(block[2], i);
    const Four most = larger(larger(r, g), b);
    const Four range = most - smaller(smaller(r, g), b);
    // A grey pixel has saturation 0, so its hue does not matter. The 1 in the divisor only prevents 0 / 0.
    const Four one_if_grey = range > k0 ? k0 : k1;
    const Four divisor = range + one_if_grey;
    // The hue, in sixths of the circle, is (blue) - (green) if red is largest, 2 + (red) - (blue) if green is largest,
    // otherwise 4 + (green) - (red). Here (c) is the distance of channel c from the largest, divided by the range.
    const Whole red = most == r;
    const Whole green = most == g;
    const Four begin = red ? k0 : (green ? k2 : k4);
    const Four plus = red ? b : (green ? r : g);
    const Four minus = red ? g : (green ? b : r);
    const Four turns = (begin + (most - plus) / divisor - (most - minus) / divisor) / 6.0F + 1.0F;  // in [5/6, 11/6]
    Four hue = turns - (turns >= k1 ? k1 : k0) + by;                                                // in [-0.5, 1.5]
    hue += hue < k0 ? k1 : (hue >= k1 ? -k1 : k0);
    const Four saturation = range / (most + one_if_grey);
    // clamped() is 0 where a channel has the pixel's largest value, and 1 where it has the smallest value. Around the
    // colour circle a channel has each of these two values for two sixths of the circle. In the two sixths between
    // them, the channel changes linearly with the hue.
    const Four sixths = hue * 6.0F;
    put(block[0], i, most * (1.0F - saturation * clamped(smaller(sixths - 1.0F, 5.0F - sixths))));
    put(block[1], i, most * (1.0F - saturation * clamped(larger(1.0F - sixths, sixths - 3.0F))));
    put(block[2], i, most * (1.0F - saturation * clamped(larger(3.0F - sixths, sixths - 5.0F))));
  }
}

/// Applies `change` to a block. Only a change of contrast uses `mean`, the mean of the greys of the whole image.
void apply(Block& block, const ColourChange& change, float mean) {
  switch (change.colour) {
    case Colour::brightness:
      return blend_with(block, Blend(change.factor), 0);
    case Colour::contrast:
      return blend_with(block, Blend(change.factor), mean);
    case Colour::saturation:
      return saturate(block, Blend(change.factor));
    case Colour::hue:
      return turn_hue(block, static_cast<float>(change.factor));
  }
}

/// Adds the greys of the first `pixels` pixels to `sum`. A grey is counted in whole multiples of 1 / kGreyParts, so
/// that the sum does not depend on the order of the pixels.
void add_greys(const Block& block, std::size_t pixels, std::int64_t& sum) {
  std::array<std::int32_t, kPixels> greys;
  for (std::size_t i = 0; i < kPixels; i += 4) {
    const Whole parts = __builtin_convertvector(grey(block, i) * kGreyParts, Whole);
    std::memcpy(&greys[i], &parts, sizeof parts);
  }
  for (std::size_t i = 0; i < pixels; ++i) {
    sum += greys[i];
  }
}

constexpr std::array<float, 256> kValues = [] {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) / 255.0F;
  }
  return values;
}();

float value_of(std::uint8_t byte) {
  return kValues[byte];
}

float value_of(float value) {
  return value;
}

template <class T>
void load(const T* from, std::size_t pixels, Block& block) {
  if (pixels < kPixels) {
    block = {};
  }
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      block[c][i] = value_of(from[3 * i + c]);
    }
  }
}

void store(const Block& block, std::size_t pixels, float* to) {
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      to[3 * i + c] = block[c][i];
    }
  }
}

/// Returns byte_of() of each of the four values.
Whole bytes_of(Four value) {
  return __builtin_convertvector(value * 255.0F + 0.5F, Whole);
}

void store(const Block& block, std::size_t pixels, std::uint8_t* to) {
  std::array<std::int32_t, kPixels> words;  // one word per pixel: red, green, blue, 0
  for (std::size_t i = 0; i < kPixels; i += 4) {
    const Whole word =
        bytes_of(four_at(block[0], i)) | bytes_of(four_at(block[1], i)) << 8 | bytes_of(four_at(block[2], i)) << 16;
    std::memcpy(&words[i], &word, sizeof word);
  }
  static_assert(std::endian::native == std::endian::little);
  // A pixel is stored as four bytes at once; the next pixel overwrites the fourth byte.
  for (std::size_t i = 0; i + 1 < pixels; ++i) {
    std::memcpy(to + 3 * i, &words[i], 4);
  }
  std::memcpy(to + 3 * (pixels - 1), &words[pixels - 1], 3);
}

/// Applies all changes in one pass over the image, and one more pass for each change of contrast. A change of contrast
/// needs the mean of all greys first; `memory` keeps the pixels until the mean is known.
template <class T>
void adjust(std::span<const ColourChange> changes, std::span<T> image, std::vector<float>& memory) {
  const std::size_t all = image.size() / 3;
  float mean = 0;
  for (bool kept = false;; kept = true) {
    const auto contrast = [](const ColourChange& change) { return change.colour == Colour::contrast; };
    const auto next = std::find_if(changes.begin() + (kept ? 1 : 0), changes.end(), contrast);
    const bool last = next == changes.end();
    if (!last) {
      memory.resize((all + kPixels - 1) / kPixels * 3 * kPixels);
    }
    std::int64_t sum = 0;
    for (std::size_t first = 0; first < all; first += kPixels) {
      Block block;
      const std::size_t pixels = std::min(kPixels, all - first);
      if (kept) {
        std::memcpy(&block, memory.data() + 3 * first, sizeof block);
      } else {
        load(image.data() + 3 * first, pixels, block);
      }
      for (const ColourChange& change : std::span(changes.begin(), next)) {
        apply(block, change, mean);
      }
      if (last) {
        store(block, pixels, image.data() + 3 * first);
      } else {
        add_greys(block, pixels, sum);
        std::memcpy(memory.data() + 3 * first, &block, sizeof block);
      }
    }
    if (last) {
      return;
    }
    mean = mean_of_greys(sum, static_cast<std::int64_t>(std::max<std::size_t>(all, 1)));
    changes = {next, changes.end()};
  }
}

}  // namespace

void adjust_colours(std::span<const ColourChange> changes, std::span<float> pixels, std::vector<float>& memory) {
  adjust(changes, pixels, memory);
}

void adjust_colours(std::span<const ColourChange> changes, std::span<std::uint8_t> pixels, std::vector<float>& memory) {
  adjust(changes, pixels, memory);
}

}  // namespace lockstep::ops::images

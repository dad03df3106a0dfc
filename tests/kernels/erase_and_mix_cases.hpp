#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <lockstep/kernels/erase_and_mix.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct EraseAndMixParams {
  Shape images;           ///< shape (N, P, H, W, 3): N samples of P pictures
  std::int64_t gap = 0;   ///< unused numbers after each row of a table
  bool in_place = false;  ///< output overwrites the images; needs one picture per sample
  bool none = false;      ///< every rectangle is empty, and mixtures show picture 0 only
};

/// Returns a random rectangle. It may be empty, cover the image, cover one pixel, or extend beyond the image.
inline std::array<double, 4> random_rectangle(Random& random, const Shape& images) {
  const auto height = static_cast<double>(images[2]);
  const auto width = static_cast<double>(images[3]);
  const auto below = [&](double extent) {
    return static_cast<double>(static_cast<std::int64_t>(random.uniform() * extent));
  };
  const double left = below(width);
  const double top = below(height);
  switch (random.below(6)) {
    case 0:
      return {0, 0, 0, 0};
    case 1:
      return {0, 0, width, height};
    case 2:
      return {left, top, left + 1, top + 1};
    case 3:
      return {-left - 1, -3, width + 5, top + 1.75};
    case 4:
      return {left, top, left, height};
    default:
      return {left, top, left + 1 + below(width), top + 1 + below(height)};
  }
}

/// Returns the table of erasures. Each row is followed by p.gap NaNs, which the op must not read.
inline std::vector<double> erasure_table(const EraseAndMixParams& p) {
  Random random(1, RandomUse::test);
  std::vector<double> table;
  for (std::int64_t i = 0; i < p.images[0] * p.images[1]; ++i) {
    const std::array<double, 4> drawn = random_rectangle(random, p.images);
    const std::array<double, 4> rectangle = p.none ? std::array<double, 4>{} : drawn;
    table.insert(table.end(), rectangle.begin(), rectangle.end());
    table.insert(table.end(), static_cast<std::size_t>(p.gap), std::nan(""));
  }
  return table;
}
inline std::vector<double> mixture_table(const EraseAndMixParams& p) {
  Random random(2, RandomUse::test);
  std::vector<double> table;
  for (std::int64_t n = 0; n < p.images[0]; ++n) {
    const std::array<double, 4> shown = random_rectangle(random, p.images);
    const std::array<double, 5> shares{random.uniform(), 1, 0, random.uniform(), 0.5};
    table.push_back(!p.none && n % 2 == 1 ? 1 : 0);
    table.push_back(p.none ? 1 : shares[static_cast<std::size_t>(n / 2 % 5)]);
    table.insert(table.end(), shown.begin(), shown.end());
    table.insert(table.end(), static_cast<std::size_t>(p.gap), std::nan(""));
  }
  return table;
}

inline constexpr std::array<std::uint8_t, 3> kEraseFill{11, 222, 133};

/// Makes a test case of erase_and_mix(). Inputs: erasures; mixtures if each sample has two pictures; images unless
/// p.in_place. Output: out.
inline OpCase erase_and_mix_case(const EraseAndMixParams& p) {
  const std::int64_t samples = p.images[0];
  const std::int64_t pictures = p.images[1];
  OpCase item;
  item.name = concat("erase_and_mix ", p.images, p.in_place ? " in place" : "", p.none ? " none" : "",
                     p.gap > 0 ? concat(" gap ", p.gap) : std::string());
  item.dtype = DType::u8;
  item.inputs = {
      {"erasures", Shape{samples, pictures, ops::kErasureColumns + p.gap}, DType::f64, values(erasure_table(p))}};
  add_if(pictures == 2, item.inputs,
         {"mixtures", Shape{samples, ops::kMixtureColumns + p.gap}, DType::f64, values(mixture_table(p))});
  const Generator pixels = integers(3, 0, 255);
  add_if(!p.in_place, item.inputs, {"images", p.images, DType::u8, pixels});
  item.outputs = {{"out", Shape{samples, p.images[2], p.images[3], 3}, DType::u8, p.in_place ? pixels : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    const TensorView images = p.in_place ? out[0].reshape(p.images) : in.back();
    const TensorView mixtures = pictures == 2 ? in[1].slice(1, 0, ops::kMixtureColumns) : TensorView();
    ops::erase_and_mix(context, kEraseFill, images, in[0].slice(2, 0, ops::kErasureColumns), mixtures, out[0]);
  };
  return item;
}

/// Returns parameters of test cases: one pixel; sizes that are multiples of 16 pixels and others, so that pictures and
/// output begin at equal or different distances from a 16-byte boundary; images of several tiles, also with rows of one
/// pixel; more tiles than the emulated GPU has blocks; no image; no pixel.
inline std::vector<EraseAndMixParams> erase_and_mix_params() {
  std::vector<EraseAndMixParams> all;
  for (const std::int64_t pictures : {1, 2}) {
    for (const bool in_place : {false, true}) {
      if (in_place && pictures == 2) {
        continue;
      }
      const auto add = [&](std::int64_t samples, std::int64_t height, std::int64_t width, std::int64_t gap) {
        all.push_back({Shape{samples, pictures, height, width, 3}, gap, in_place});
      };
      add(13, 1, 1, 0);
      add(24, 5, 7, 3);
      add(20, 4, 4, 0);
      add(23, 8, 6, 1);
      add(11, 16, 1, 2);
      add(7, 1, 33, 0);
      add(3, 61, 83, 1);
      add(4, 64, 36, 0);
      add(2, 2064, 1, 0);
      add(0, 5, 7, 0);
      add(3, 5, 0, 1);
      all.push_back({Shape{3, pictures, 8, 10, 3}, 0, in_place, true});
    }
  }
  return all;
}

inline std::vector<DeviceCase> erase_and_mix_device_cases() {
  return same_cases(erase_and_mix_params(), erase_and_mix_case);
}

}  // namespace lockstep::testing

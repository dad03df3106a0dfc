#include <lockstep/nn/data/images/resample.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace lockstep::nn::images {
namespace {

using Taps = ResampleMemory::Taps;

/// The weights of one output, appended to `weights`; their sum is 1.
Taps taps_of(const Axis& axis, std::int64_t output, std::vector<float>& weights) {
  const double width = std::max(1.0, std::abs(axis.step));
  const double middle = std::clamp(axis.begin + (static_cast<double>(output) + 0.5) * axis.step,
                                   static_cast<double>(axis.low), static_cast<double>(axis.high));
  const std::int64_t first = std::max(axis.low, static_cast<std::int64_t>(std::floor(middle - width + 0.5)));
  const std::int64_t end = std::min(axis.high, static_cast<std::int64_t>(std::floor(middle + width + 0.5)));
  const std::size_t begin = weights.size();
  double sum = 0;
  const auto weight = [&](std::int64_t pixel) {
    return std::max(0.0, 1 - std::abs(static_cast<double>(pixel) + 0.5 - middle) / width);
  };
  for (std::int64_t pixel = first; pixel < end; ++pixel) {
    sum += weight(pixel);
  }
  for (std::int64_t pixel = first; pixel < end; ++pixel) {
    weights.push_back(static_cast<float>(weight(pixel) / sum));
  }
  return {first, begin, weights.size() - begin};
}

void all_taps(const Axis& axis, std::int64_t size, std::vector<Taps>& taps, std::vector<float>& weights) {
  taps.clear();
  for (std::int64_t i = 0; i < size; ++i) {
    taps.push_back(taps_of(axis, i, weights));
  }
}

/// The first pixel that taps read and the one behind the last; the taps of a mirrored axis come from the far end.
std::pair<std::int64_t, std::int64_t> pixels_of(const std::vector<Taps>& all) {
  std::int64_t low = std::numeric_limits<std::int64_t>::max();
  std::int64_t high = 0;
  for (const Taps& taps : all) {
    low = std::min(low, taps.first);
    high = std::max(high, taps.first + static_cast<std::int64_t>(taps.count));
  }
  return {low, high};
}

/// To the nearest that a byte holds.
std::uint8_t rounded(float value) {
  return static_cast<std::uint8_t>(static_cast<int>(std::clamp(value + 0.5F, 0.0F, 255.0F)));
}

}  // namespace

Axis mirrored(const Axis& axis, std::int64_t extent) {
  return {static_cast<double>(extent) - axis.begin, -axis.step, extent - axis.high, extent - axis.low};
}

void resample(const PixelView& picture, const Axis& x, const Axis& y, const Extent& size, bool transposed,
              ResampleMemory& memory, std::span<std::uint8_t> out) {
  memory.weights.clear();
  all_taps(x, transposed ? size.height : size.width, memory.taps_x, memory.weights);
  all_taps(y, transposed ? size.width : size.height, memory.taps_y, memory.weights);
  const auto [low, high] = pixels_of(memory.taps_y);
  const auto [left, right] = pixels_of(memory.taps_x);
  const std::size_t across = memory.taps_x.size();
  const std::size_t down = memory.taps_y.size();
  const auto picture_row = static_cast<std::size_t>(picture.width) * 3;
  // A processor adds four floats in one instruction, so each sum takes a fourth channel, the next pixel's first. The
  // next output overwrites it. `line` and `rows` are one float longer for the last pixel's.
  const auto needed = static_cast<std::size_t>(right - left) * 3;
  memory.line.assign(needed + 1, 0.0F);
  memory.rows.resize(static_cast<std::size_t>(high - low) * across * 3 + 1);
  float* to = memory.rows.data();
  for (std::int64_t row = low; row < high; ++row) {
    const std::uint8_t* from =
        picture.pixels + static_cast<std::size_t>(row) * picture_row + static_cast<std::size_t>(left) * 3;
    float* line = memory.line.data();
    for (std::size_t i = 0; i < needed; ++i) {
      line[i] = static_cast<float>(from[i]);
    }
    for (const Taps& taps : memory.taps_x) {
      const float* weight = memory.weights.data() + taps.begin;
      const float* pixel = line + static_cast<std::size_t>(taps.first - left) * 3;
      float sum[4] = {0, 0, 0, 0};
      for (std::size_t i = 0; i < taps.count; ++i) {
        for (std::size_t c = 0; c < 4; ++c) {
          sum[c] += weight[i] * pixel[3 * i + c];
        }
      }
      std::copy_n(sum, 4, to);
      to += 3;
    }
  }
  // A row at a time, each sum in the order of its taps.
  memory.row.resize(across * 3);
  float* sums = memory.row.data();
  for (std::size_t i = 0; i < down; ++i) {
    const Taps& taps = memory.taps_y[i];
    const float* weights = memory.weights.data() + taps.begin;
    const float* rows = memory.rows.data() + static_cast<std::size_t>(taps.first - low) * across * 3;
    std::fill_n(sums, across * 3, 0.0F);
    for (std::size_t t = 0; t < taps.count; ++t, rows += across * 3) {
      const float weight = weights[t];
      for (std::size_t j = 0; j < across * 3; ++j) {
        sums[j] += weight * rows[j];
      }
    }
    if (!transposed) {
      std::uint8_t* line = out.data() + i * across * 3;
      for (std::size_t j = 0; j < across * 3; ++j) {
        line[j] = rounded(sums[j]);
      }
      continue;
    }
    for (std::size_t j = 0; j < across; ++j) {
      for (std::size_t c = 0; c < 3; ++c) {
        out[(j * down + i) * 3 + c] = rounded(sums[3 * j + c]);
      }
    }
  }
}

}  // namespace lockstep::nn::images

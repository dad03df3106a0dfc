#include <lockstep/kernels/images/resample.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include <lockstep/kernels/images/four.hpp>

namespace lockstep::ops::images {
namespace {

constexpr std::size_t kSums = 16;  // number of sums that stay in registers at a time

using Taps = ResampleMemory::Taps;

/// The triangle that weights the pixels of one output, and the range of these pixels.
struct Triangle {
  double middle;
  double width;  ///< distance from the middle to each end, in pixels
  PixelRange pixels;
};

Triangle triangle_of(const Axis& axis, std::int64_t output) {
  const double width = std::max(1.0, std::abs(axis.step));
  const double middle = std::clamp(axis.begin + (static_cast<double>(output) + 0.5) * axis.step,
                                   static_cast<double>(axis.low), static_cast<double>(axis.high));
  return {middle,
          width,
          {std::max(axis.low, static_cast<std::int64_t>(std::floor(middle - width + 0.5))),
           std::min(axis.high, static_cast<std::int64_t>(std::floor(middle + width + 0.5)))}};
}

/// Appends the weights of the pixels of output `output` to `weights`. The sum of these weights is 1.
Taps taps_of(const Axis& axis, std::int64_t output, std::vector<float>& weights) {
  const Triangle triangle = triangle_of(axis, output);
  const auto [first, end] = triangle.pixels;
  const std::size_t begin = weights.size();
  double sum = 0;
  const auto weight = [&](std::int64_t pixel) {
    return std::max(0.0, 1 - std::abs(static_cast<double>(pixel) + 0.5 - triangle.middle) / triangle.width);
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

/// Writes the weights of all outputs to `out`. Pads the weights of each output with zeros, so that all outputs have as
/// many weights as the output with most weights; returns this number.
std::size_t padded(const std::vector<Taps>& all, const std::vector<float>& weights, std::vector<float>& out) {
  std::size_t most = 0;
  for (const Taps& taps : all) {
    most = std::max(most, taps.count);
  }
  out.assign(all.size() * most, 0.0F);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::copy_n(weights.data() + all[i].begin, all[i].count, out.data() + i * most);
  }
  return most;
}

/// Computes one row of outputs, each from `count` pixels and weights. kCount is `count`, or 0 if `count` is not known
/// at compile time.
template <std::size_t kCount>
void add_row(const std::vector<Taps>& all, std::int64_t left, std::size_t count, const float* weights,
             const float* line, float* to) {
  const std::size_t many = kCount != 0 ? kCount : count;
  for (const Taps& taps : all) {
    const float* pixel = line + static_cast<std::size_t>(taps.first - left) * 3;
    Four sum{};
    for (std::size_t i = 0; i < many; ++i) {
      sum += weights[i] * four(pixel + 3 * i);
    }
    std::memcpy(to, &sum, sizeof sum);
    weights += many;
    to += 3;
  }
}

void add_across(const std::vector<Taps>& all, std::int64_t left, std::size_t count, const float* weights,
                const float* line, float* to) {
  const auto add = count == 2 ? add_row<2> : count == 3 ? add_row<3> : count == 4 ? add_row<4> : add_row<0>;
  add(all, left, count, weights, line, to);
}

/// Rounds each of the four sums to the nearest value of a byte. No sum is negative.
Whole rounded(Four sum) {
  const Four up = sum + 0.5F;
  const Four most = {255, 255, 255, 255};
  return __builtin_convertvector(up < most ? up : most, Whole);
}

}  // namespace

PixelRange pixels_of(const Axis& axis, std::int64_t outputs) {
  const PixelRange first = triangle_of(axis, 0).pixels;
  const PixelRange last = triangle_of(axis, outputs - 1).pixels;  // on a mirrored axis these are the lowest pixels
  return {std::min(first.begin, last.begin), std::max(first.end, last.end)};
}

Axis mirrored(const Axis& axis, std::int64_t extent) {
  return {static_cast<double>(extent) - axis.begin, -axis.step, extent - axis.high, extent - axis.low};
}

void resample(const PixelView& picture, const Axis& x, const Axis& y, const Extent& size, bool transposed,
              ResampleMemory& memory, std::span<std::uint8_t> out) {
  memory.weights.clear();
  all_taps(x, transposed ? size.height : size.width, memory.taps_x, memory.weights);
  all_taps(y, transposed ? size.width : size.height, memory.taps_y, memory.weights);
  const auto [low, high] = pixels_of(y, transposed ? size.width : size.height);
  const auto [left, right] = pixels_of(x, transposed ? size.height : size.width);
  const std::size_t across = memory.taps_x.size();
  const std::size_t down = memory.taps_y.size();
  const auto picture_row = static_cast<std::size_t>(picture.width) * 3;
  // A vector instruction adds four floats, so each sum has a fourth channel, taken from the next pixel and not used.
  // The next output overwrites this fourth channel. `line` and `rows` have extra elements for the fourth channel of the
  // last pixel.
  const auto needed = static_cast<std::size_t>(right - left) * 3;
  // Weights of 0 make all sums equally long, so that branches are predicted. Such weights do not change a bit of a sum.
  const std::size_t most = padded(memory.taps_x, memory.weights, memory.across);
  memory.line.assign(needed + 3 * most + 1, 0.0F);
  memory.rows.resize(static_cast<std::size_t>(high - low) * across * 3 + kSums);
  float* to = memory.rows.data();
  for (std::int64_t row = low; row < high; ++row) {
    const std::uint8_t* from = picture.pixels + static_cast<std::size_t>(row - picture.top) * picture_row +
                               static_cast<std::size_t>(left - picture.left) * 3;
    float* line = memory.line.data();
    for (std::size_t i = 0; i < needed; ++i) {
      line[i] = static_cast<float>(from[i]);
    }
    add_across(memory.taps_x, left, most, memory.across.data(), line, to);
    to += across * 3;
  }
  // Sixteen sums at a time stay in registers; each sum adds its taps in order. The last sixteen sums may overlap the
  // sixteen before them.
  const std::size_t row = across * 3;
  memory.row.resize(std::max(row, kSums));
  for (std::size_t i = 0; i < down; ++i) {
    const Taps& taps = memory.taps_y[i];
    const float* weights = memory.weights.data() + taps.begin;
    const float* rows = memory.rows.data() + static_cast<std::size_t>(taps.first - low) * row;
    std::int32_t* sums = memory.row.data();
    for (std::size_t j = 0; j < row; j += kSums) {
      const std::size_t first = std::min(j, row < kSums ? 0 : row - kSums);
      Four sum[4] = {};
      for (std::size_t t = 0; t < taps.count; ++t) {
        const float* from = rows + t * row + first;
        for (std::size_t k = 0; k < 4; ++k) {
          sum[k] += weights[t] * four(from + 4 * k);
        }
      }
      for (std::size_t k = 0; k < 4; ++k) {
        const Whole whole = rounded(sum[k]);
        std::memcpy(sums + first + 4 * k, &whole, sizeof whole);
      }
    }
    if (!transposed) {
      std::uint8_t* line = out.data() + i * row;
      for (std::size_t j = 0; j < row; ++j) {
        line[j] = static_cast<std::uint8_t>(sums[j]);
      }
      continue;
    }
    for (std::size_t j = 0; j < across; ++j) {
      for (std::size_t c = 0; c < 3; ++c) {
        out[(j * down + i) * 3 + c] = static_cast<std::uint8_t>(sums[3 * j + c]);
      }
    }
  }
}

}  // namespace lockstep::ops::images

#include <lockstep/nn/data/detail/augmentation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

namespace lockstep::nn::detail {
namespace {

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

}  // namespace

Random random_for(std::uint64_t seed, Draw draw, std::int64_t epoch, std::int64_t index) {
  constexpr int kIndexBits = 60;
  return {seed, RandomUse::augment, static_cast<std::uint64_t>(epoch),
          static_cast<std::uint64_t>(index) | static_cast<std::uint64_t>(draw) << kIndexBits};
}

void draw_changes(const JitterOptions& options, Random random, std::vector<ops::images::ColourChange>& changes) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[random.below(static_cast<std::uint32_t>(i + 1))]);
  }
  const auto factor = [&](double most) { return between(random, std::max(0.0, 1 - most), 1 + most); };
  const double brightness = factor(options.brightness);
  const double contrast = factor(options.contrast);
  const double saturation = factor(options.saturation);
  const double hue = between(random, -options.hue, options.hue);
  changes.clear();
  for (const int change : order) {
    if (change == 0 && options.brightness > 0) {
      changes.push_back({ops::images::Colour::brightness, brightness});
    } else if (change == 1 && options.contrast > 0) {
      changes.push_back({ops::images::Colour::contrast, contrast});
    } else if (change == 2 && options.saturation > 0) {
      changes.push_back({ops::images::Colour::saturation, saturation});
    } else if (change == 3 && options.hue > 0) {
      changes.push_back({ops::images::Colour::hue, hue});
    }
  }
}

ops::images::Rectangle draw_erased(const images::Extent& size, double probability, Random random) {
  constexpr int kTries = 10;
  constexpr double kLeastArea = 0.02;
  constexpr double kMostArea = 0.33;
  const double widest = std::log(10.0 / 3);
  if (!(random.uniform() < probability)) {
    return {};
  }
  const auto area = static_cast<double>(size.width * size.height);
  for (int i = 0; i < kTries; ++i) {
    const double part = area * between(random, kLeastArea, kMostArea);
    const double ratio = std::exp(between(random, -widest, widest));
    const std::int64_t h = std::llround(std::sqrt(part * ratio));
    const std::int64_t w = std::llround(std::sqrt(part / ratio));
    if (h < 1 || w < 1 || h >= size.height || w >= size.width) {
      continue;
    }
    const std::int64_t top = random.below(static_cast<std::uint32_t>(size.height - h + 1));
    const std::int64_t left = random.below(static_cast<std::uint32_t>(size.width - w + 1));
    return {left, top, left + w, top + h};
  }
  return {};
}

void add_labels_of_mixtures(bool mixes, std::vector<SampleField>& fields) {
  if (mixes) {
    fields.push_back({StateField::other_labels, DType::i32, {}});
    fields.push_back({StateField::shares, DType::f32, {}});
    fields.push_back({StateField::other_shares, DType::f32, {}});
  }
}

void put_labels(std::int32_t label, std::int32_t other, float share, std::span<const std::span<std::byte>> out) {
  const auto put = [&](std::size_t field, auto value) { std::memcpy(out[field].data(), &value, sizeof value); };
  put(0, label);
  if (out.size() > 1) {
    put(1, other);
    put(2, share);
    put(3, 1 - share);
  }
}

}  // namespace lockstep::nn::detail

#include <lockstep/nn/data/dataset.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

// Images that a synthetic set is normalised by: enough for three digits, drawn in a moment.
constexpr std::int64_t kSyntheticSamples = 1024;

}  // namespace

Dataset::Dataset(DatasetInfo info) : info_(std::move(info)) {
  require<UsageError>(info_.size > 0 && info_.height > 0 && info_.width > 0 && info_.classes > 0, info_.name, ": ",
                      info_.size, " images of ", info_.height, " x ", info_.width, " in ", info_.classes,
                      " classes, expected positive numbers");
}

ChannelStatistics channel_statistics(const Dataset& dataset, std::int64_t samples) {
  const std::int64_t count = std::clamp<std::int64_t>(samples, 1, dataset.size());
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset.image_bytes()));
  // 2^64 / 255^2 is more than 10^14 pixels: the sums cannot overflow.
  std::array<std::uint64_t, 3> sum{};
  std::array<std::uint64_t, 3> sum_of_squares{};
  for (std::int64_t i = 0; i < count; ++i) {
    // i * size / count without the product, which could overflow.
    const std::int64_t index = dataset.size() / count * i + dataset.size() % count * i / count;
    dataset.read(index, image);
    for (std::size_t p = 0; p < image.size(); p += 3) {
      for (std::size_t c = 0; c < 3; ++c) {
        const std::uint64_t value = image[p + c];
        sum[c] += value;
        sum_of_squares[c] += value * value;
      }
    }
  }
  const double pixels = static_cast<double>(count) * static_cast<double>(dataset.image_bytes()) / 3.0;
  ChannelStatistics result;
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = static_cast<double>(sum[c]) / pixels;
    const double variance = static_cast<double>(sum_of_squares[c]) / pixels - mean * mean;
    result.mean[c] = static_cast<float>(mean / 255.0);
    // A constant channel has a variance of rounding errors only.
    result.std[c] = variance > 1e-6 ? static_cast<float>(std::sqrt(variance) / 255.0) : 1.0F;
  }
  return result;
}

DataSplit open_data(const DataOptions& options) {
  const std::size_t colon = options.spec.find(':');
  const std::string kind = options.spec.substr(0, colon);
  const std::string folder = colon == std::string::npos ? "" : options.spec.substr(colon + 1);
  DataSplit split;
  std::int64_t samples = std::numeric_limits<std::int64_t>::max();
  if (options.spec == "synthetic") {
    split = detail::open_synthetic(options.synthetic, options.seed);
    samples = kSyntheticSamples;
  } else if (kind == "cifar10" && !folder.empty()) {
    split = detail::open_cifar10(folder);
  } else if (kind == "idx" && !folder.empty()) {
    split = detail::open_idx(folder);
  } else {
    throw UsageError(concat("data is '", options.spec, "', expected synthetic, cifar10:DIR or idx:DIR"));
  }
  split.statistics = channel_statistics(*split.train, samples);
  return split;
}

namespace detail {

void Hash::add(std::uint64_t word) {
  state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ULL;
  state_ ^= state_ >> 32;
}

void Hash::add(std::span<const std::uint8_t> bytes) {
  add(bytes.size());
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    add(word);
  }
  std::uint64_t rest = 0;
  for (; i < bytes.size(); ++i) {
    rest = rest << 8 | bytes[i];
  }
  add(rest);
}

StoredImages::StoredImages(DatasetInfo info, int channels, std::vector<std::uint8_t> pixels,
                           std::vector<std::uint8_t> labels)
    : Dataset(std::move(info)), channels_(channels), pixels_(std::move(pixels)), labels_(std::move(labels)) {
  Hash hash;
  for (const std::int64_t number : {size(), height(), width(), std::int64_t{classes()}, std::int64_t{channels}}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  hash.add(pixels_);
  hash.add(labels_);
  fingerprint_ = hash.value();
}

std::int32_t StoredImages::label(std::int64_t index) const {
  return labels_[static_cast<std::size_t>(index)];
}

void StoredImages::read(std::int64_t index, std::span<std::uint8_t> image) const {
  const auto pixels = static_cast<std::size_t>(height() * width());
  const std::uint8_t* from =
      pixels_.data() + static_cast<std::size_t>(index) * pixels * static_cast<unsigned>(channels_);
  if (channels_ == 3) {
    std::memcpy(image.data(), from, pixels * 3);
    return;
  }
  for (std::size_t p = 0; p < pixels; ++p) {
    image[3 * p] = image[3 * p + 1] = image[3 * p + 2] = from[p];
  }
}

}  // namespace detail
}  // namespace lockstep::nn

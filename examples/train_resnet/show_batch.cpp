#include "show_batch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <span>
#include <sstream>
#include <vector>

#include <lockstep/nn/data/images/encode.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace train_resnet {

namespace nn = lockstep::nn;
using lockstep::Shape;
using lockstep::TensorView;

namespace {

constexpr std::int64_t kMostColumns = 8;
constexpr std::int64_t kMostSheet = 8192;  // largest side of the PNG file in pixels, unless one image is larger
constexpr std::int64_t kSmallTile = 128;
constexpr std::int64_t kGap = 2;
constexpr std::uint8_t kGapColour = 255;

/// Reads one sample of a data set at a time into its own memory, and gives access to the sample's fields.
class Sample {
 public:
  explicit Sample(const nn::Dataset& set) : set_(set) {
    for (const nn::SampleField& field : set.fields()) {
      memory_.emplace_back(field.bytes());
    }
    spans_.assign(memory_.begin(), memory_.end());
  }
  void read(std::int64_t index) { set_.read_sample_in(0, index, spans_); }
  [[nodiscard]] std::span<const std::byte> image() const { return memory_[0]; }
  template <class T>
  [[nodiscard]] T number(nn::StateField field) const {
    T value{};
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (set_.fields()[i].field == field) {
        std::memcpy(&value, memory_[i].data(), sizeof value);
      }
    }
    return value;
  }
  [[nodiscard]] std::string label(const std::vector<std::string>& class_names) const {
    const auto name = [&](nn::StateField field) {
      const auto index = static_cast<std::size_t>(number<std::int32_t>(field));
      return index < class_names.size() ? lockstep::displayed(class_names[index]) : std::to_string(index);
    };
    std::ostringstream text;
    text << std::fixed << std::setprecision(2);
    const auto other = number<float>(nn::StateField::other_shares);
    if (other == 0) {
      text << name(nn::StateField::labels);
    } else {
      text << number<float>(nn::StateField::shares) << '*' << name(nn::StateField::labels) << '+' << other << '*'
           << name(nn::StateField::other_labels);
    }
    return text.str();
  }

 private:
  const nn::Dataset& set_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> spans_;
};

std::uint8_t byte_of(float value, float mean, float std) {
  return static_cast<std::uint8_t>(std::clamp((value * std + mean) * 255.0F + 0.5F, 0.0F, 255.0F));
}

}  // namespace

void show_batch(const nn::Dataset& train, const lockstep::ops::AugmentDesc& augment, const nn::TrainerOptions& run,
                int ranks, const std::vector<std::string>& class_names, const std::string& file) {
  const nn::Sampler sampler({.size = train.size(),
                             .batch_size = run.global_batch,
                             .ranks = ranks,
                             .keep_last = run.keep_last,
                             .seed = run.step.seed,
                             .chunk = run.shuffle_chunk});
  const std::int64_t height = train.fields()[0].shape[0];
  const std::int64_t width = train.fields()[0].shape[1];
  const std::int64_t longer = std::max(height, width);
  const std::int64_t enlarged = std::max<std::int64_t>(kSmallTile / longer, 1);
  const std::int64_t tile = longer * enlarged + kGap;
  const std::int64_t in_batch = sampler.samples(0);
  const std::int64_t columns = std::min(std::clamp<std::int64_t>(kMostSheet / tile, 1, kMostColumns),
                                        static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(in_batch)))));
  const std::int64_t count = std::min(in_batch, columns * columns);
  const std::int64_t rows = (count + columns - 1) / columns;

  nn::images::Picture sheet{columns * (width * enlarged + kGap) - kGap, rows * (height * enlarged + kGap) - kGap};
  sheet.pixels.assign(static_cast<std::size_t>(sheet.width * sheet.height * 3), kGapColour);
  lockstep::CpuContext context({.threads = 1});
  lockstep::ops::AugmentDesc seeded = augment;  // `augment` with the trainer's seed
  seeded.seed = run.step.seed;
  Sample sample(train);
  const nn::Sampler::Order order = sampler.order(0);
  std::vector<float> seen(static_cast<std::size_t>(height * width * 3));
  std::vector<std::uint8_t> image(seen.size());
  std::int64_t id = 0;
  std::int64_t epoch = 0;
  std::string labels;
  for (std::int64_t n = 0; n < count; ++n) {
    id = order(n);
    sample.read(id);
    std::memcpy(image.data(), sample.image().data(), image.size());
    lockstep::ops::augment(context, seeded, TensorView(std::span(image), {1, height, width, 3}),
                           TensorView(std::span(&id, 1), {1}), TensorView(std::span(&epoch, 1), Shape{}), {},
                           TensorView(std::span(seen), {1, height, width, 3}));
    labels += (n % columns == 0 ? "\n  " : "  ") + sample.label(class_names);
    const std::int64_t top = n / columns * (height * enlarged + kGap);
    const std::int64_t left = n % columns * (width * enlarged + kGap);
    for (std::int64_t y = 0; y < height * enlarged; ++y) {
      std::uint8_t* to = sheet.pixels.data() + ((top + y) * sheet.width + left) * 3;
      for (std::int64_t x = 0; x < width * enlarged; ++x) {
        const float* from = seen.data() + (y / enlarged * width + x / enlarged) * 3;
        for (std::size_t c = 0; c < 3; ++c) {
          *to++ = byte_of(from[c], augment.mean[c], augment.std[c]);
        }
      }
    }
  }
  lockstep::replace_file(file, nn::images::encode_png(sheet));
  std::cout << file << ": the first " << count << " of " << in_batch
            << " training images of a batch, as the network sees them in epoch 0; their labels:" << labels << std::endl;
}

}  // namespace train_resnet

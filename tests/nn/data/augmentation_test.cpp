// Tests random augmentation. Compares changes of colour and random crops with torchvision's, and tests the samples and
// errors of AugmentedImages.
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <lockstep/kernels/augment.hpp>
#include <lockstep/kernels/images/colour.hpp>
#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/images/encode.hpp>
#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

#include "tests/nn/data/plain_resample.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

struct ColourCase {
  std::string change;
  double factor;
  std::vector<float> expected;
};
struct CropCase {
  std::int64_t top, left, height, width, out_height, out_width;
  std::vector<float> expected;
};
#include "tests/nn/data/torchvision_images.inc"

TEST(Colours, AreTorchvisions) {
  ASSERT_EQ(kColourCases.size(), 17U);
  for (const ColourCase& item : kColourCases) {
    std::vector<float> values;
    for (const std::uint8_t byte : kColours) {
      values.push_back(static_cast<float>(byte) / 255.0F);
    }
    const ops::images::Colour colour = item.change == "brightness"   ? ops::images::Colour::brightness
                                       : item.change == "contrast"   ? ops::images::Colour::contrast
                                       : item.change == "saturation" ? ops::images::Colour::saturation
                                                                     : ops::images::Colour::hue;
    const ops::images::ColourChange change{colour, item.factor};
    std::vector<float> memory;
    ops::images::adjust_colours(std::span(&change, 1), std::span(values), memory);
    ASSERT_EQ(values.size(), item.expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_FALSE(!(std::abs(values[i] - item.expected[i]) <= 2e-6F))
          << item.change << ' ' << item.factor << ", value " << i << ": " << values[i] << ", torchvision "
          << item.expected[i];
    }
  }
}

TEST(ResizedParts, AreTorchvisions) {
  constexpr std::int64_t kHeight = 9;
  constexpr std::int64_t kWidth = 13;
  images::Picture picture{kWidth, kHeight};
  for (std::int64_t y = 0; y < kHeight; ++y) {
    for (std::int64_t x = 0; x < kWidth; ++x) {
      for (std::int64_t c = 0; c < 3; ++c) {
        picture.pixels.push_back(static_cast<std::uint8_t>((37 * y * y + 91 * x + 53 * c * (x + 2 * y) + 11) % 256));
      }
    }
  }
  images::ResampleMemory memory;
  for (const CropCase& part : kCropCases) {
    const auto axis = [](std::int64_t begin, std::int64_t count, std::int64_t out) {
      return images::Axis{static_cast<double>(begin), static_cast<double>(count) / static_cast<double>(out), begin,
                          begin + count};
    };
    std::vector<std::uint8_t> out(part.expected.size());
    images::resample(images::view_of(picture), axis(part.left, part.width, part.out_width),
                     axis(part.top, part.height, part.out_height), {part.out_width, part.out_height}, false, memory,
                     out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_FALSE(!(std::abs(static_cast<float>(out[i]) - part.expected[i]) <= 0.5F + 1e-3F))
          << part.out_height << " x " << part.out_width << ", value " << i << ": " << int{out[i]} << ", torchvision "
          << part.expected[i];
    }
  }
}

using Bytes = std::vector<std::uint8_t>;

/// Returns images of random bytes, or images with one value everywhere.
std::unique_ptr<ImageDataset> images_of(std::int64_t size, std::int64_t height, std::int64_t width,
                                        int value_of_all = -1) {
  Random random(17, RandomUse::test);
  Bytes pixels;
  Bytes labels;
  for (std::int64_t i = 0; i < size * height * width * 3; ++i) {
    pixels.push_back(static_cast<std::uint8_t>(value_of_all < 0 ? random.below(256) : value_of_all));
  }
  for (std::int64_t i = 0; i < size; ++i) {
    labels.push_back(static_cast<std::uint8_t>(i % 7));
  }
  return std::make_unique<detail::StoredImages>(DatasetInfo{"images", size, height, width, 7}, 3, std::move(pixels),
                                                std::move(labels));
}

Bytes image_of(const AugmentedImages& set, std::int64_t epoch, std::int64_t index) {
  Bytes image(set.fields()[0].bytes());
  set.read_unmixed(epoch, index, image);
  return image;
}

struct Sample {
  Bytes image;
  std::int32_t label = -1;
  std::int32_t other_label = -1;
  float share = NAN;
  float other_share = NAN;
  bool operator==(const Sample&) const = default;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Sample sample_of(const AugmentedImages& set, std::int64_t epoch, std::int64_t index) {
  Sample sample{Bytes(set.fields()[0].bytes())};
  const std::array<std::span<std::byte>, 5> out{std::as_writable_bytes(std::span(sample.image)), bytes_of(sample.label),
                                                bytes_of(sample.other_label), bytes_of(sample.share),
                                                bytes_of(sample.other_share)};
  set.read_sample_in(epoch, index, std::span(out).first(set.fields().size()));
  return sample;
}

AugmentationOptions everything() {
  return {.pad = 2,
          .flip = true,
          .automatic = AutoAugment::rand,
          .jitter = {0.4, 0.4, 0.4, 0.1},
          .erase = 0.5,
          .fill = {1, 2, 3},
          .mixup = 0.4,
          .cutmix = 1,
          .seed = 9};
}

TEST(AugmentedImages, ArePlacedAsTheDeviceDoesIt) {
  constexpr std::int64_t kSamples = 40;
  struct Case {
    std::int64_t pad;
    bool flip, alternate, reflect;
    std::int64_t epoch;
  };
  for (const auto& [pad, flip, alternate, reflect, epoch_number] :
       {Case{3, true, false, false, 4}, Case{0, true, false, false, 4}, Case{2, false, false, false, 4},
        Case{3, true, true, false, 0}, Case{0, true, true, false, 5}, Case{6, true, false, true, 4},
        Case{2, true, true, true, 7}}) {
    const AugmentedImages set(images_of(kSamples, 7, 10),
                              {.pad = pad, .reflect = reflect, .flip = flip, .alternate = alternate, .seed = 5});
    const auto raw = images_of(kSamples, 7, 10);
    CpuContext context({.threads = 1});
    for (std::int64_t id = 0; id < kSamples; ++id) {
      Bytes image(7 * 10 * 3);
      raw->read(id, image);
      std::vector<float> out(image.size());
      std::int64_t epoch = epoch_number;
      ops::augment(context, {.pad = pad, .flip = flip, .alternate = alternate, .reflect = reflect, .seed = 5},
                   TensorView(std::span(image), {1, 7, 10, 3}), TensorView(std::span(&id, 1), {1}),
                   TensorView(std::span(&epoch, 1), Shape{}), {}, TensorView(std::span(out), {1, 7, 10, 3}));
      Bytes expected(out.size());
      std::transform(out.begin(), out.end(), expected.begin(), ops::images::byte_of);
      ASSERT_EQ(image_of(set, epoch, id), expected) << id << " in epoch " << epoch;
    }
  }
}

TEST(AugmentedImages, ReflectedPaddingIsLessThanASide) {
  EXPECT_NO_THROW(AugmentedImages(images_of(3, 7, 10), {.pad = 6, .reflect = true}));
  testing::expect_holds(testing::error_of<UsageError>(
                            [] { const AugmentedImages set(images_of(3, 7, 10), {.pad = 7, .reflect = true}); }),
                        "pad is 7 and reflect is on, images are 7 x 10, expected a pad below both sides");
}

TEST(AugmentedImages, RandomPartsAreResized) {
  constexpr std::int64_t kSide = 6;
  const CropOptions crop{.area = {0.2, 0.7}, .ratio = {0.5, 2}};
  const auto raw = images_of(12, kSide, kSide);
  const AugmentedImages set(images_of(12, kSide, kSide), {.crop = crop, .seed = 3});
  Bytes image(kSide * kSide * 3);
  for (std::int64_t id = 0; id < 12; ++id) {
    raw->read(id, image);
    const Bytes got = image_of(set, 1, id);
    // The image must equal exactly one of all possible crops. A plain loop searches for this crop.
    int found = 0;
    const auto is_part = [&](std::int64_t x0, std::int64_t w, std::int64_t y0, std::int64_t h) {
      const double step_x = static_cast<double>(w) / kSide;
      const double step_y = static_cast<double>(h) / kSide;
      for (std::int64_t i = 0; i < kSide * kSide * 3; ++i) {
        const double middle_y = static_cast<double>(y0) + (static_cast<double>(i / 3 / kSide) + 0.5) * step_y;
        const double middle_x = static_cast<double>(x0) + (static_cast<double>(i / 3 % kSide) + 0.5) * step_x;
        const double expected = testing::plain_mean(middle_y, step_y, y0, y0 + h, [&](std::int64_t y) {
          return testing::plain_mean(middle_x, step_x, x0, x0 + w, [&](std::int64_t x) {
            return static_cast<double>(image[static_cast<std::size_t>((y * kSide + x) * 3 + i % 3)]);
          });
        });
        if (!(std::abs(static_cast<double>(got[static_cast<std::size_t>(i)]) - expected) <= 0.5 + 1e-3)) {
          return false;
        }
      }
      return true;
    };
    for (std::int64_t w = 1; w <= kSide; ++w) {
      for (std::int64_t h = 1; h <= kSide; ++h) {
        for (std::int64_t at = 0; at < (kSide - w + 1) * (kSide - h + 1); ++at) {
          if (is_part(at % (kSide - w + 1), w, at / (kSide - w + 1), h)) {
            ++found;
            EXPECT_GE(static_cast<double>((w + 1) * (h + 1)), 0.2 * kSide * kSide) << w << " x " << h;
            EXPECT_LE(static_cast<double>((w - 1) * (h - 1)), 0.7 * kSide * kSide) << w << " x " << h;
            EXPECT_TRUE(w < 2 * h + 2 && h < 2 * w + 2) << w << " x " << h;
          }
        }
      }
    }
    EXPECT_EQ(found, 1) << id;
  }
  // A crop that covers the whole square image returns the image unchanged.
  const AugmentedImages whole(images_of(12, kSide, kSide), {.crop = CropOptions{{1, 1}, {1, 1}}});
  raw->read(5, image);
  EXPECT_EQ(image_of(whole, 0, 5), image);
}

/// Returns `size` copies of one image of two pixels side by side.
std::unique_ptr<ImageDataset> copies_of(std::int64_t size, const Bytes& two_pixels) {
  Bytes pixels;
  for (std::int64_t i = 0; i < size; ++i) {
    pixels.insert(pixels.end(), two_pixels.begin(), two_pixels.end());
  }
  return std::make_unique<detail::StoredImages>(DatasetInfo{"copies", size, 1, 2, 2}, 3, std::move(pixels),
                                                Bytes(static_cast<std::size_t>(size)));
}

/// Expects `value` to be uniform between `low` and `high` over many jittered copies of an image, and to come near both
/// bounds.
template <class Value>
void expect_uniform(const JitterOptions& jitter, const Bytes& two_pixels, double low, double high, const Value& value) {
  constexpr std::int64_t kSamples = 2000;
  const AugmentedImages set(copies_of(kSamples, two_pixels), {.jitter = jitter, .seed = 2});
  double sum = 0;
  double least = high;
  double most = low;
  for (std::int64_t id = 0; id < kSamples; ++id) {
    const double found = value(image_of(set, 0, id));
    least = std::min(least, found);
    most = std::max(most, found);
    sum += found;
  }
  // Bytes are rounded. With probability e^-20 the least of 2000 samples is more than 1 % of the range above `low`. With
  // the same probability the greatest sample is more than 1 % of the range below `high`.
  const double near = 0.5 + 0.01 * (high - low);
  EXPECT_TRUE(least >= low - 0.5 - 1e-3 && least <= low + near) << least << ", expected " << low;
  EXPECT_TRUE(most <= high + 0.5 + 1e-3 && most >= high - near) << most << ", expected " << high;
  EXPECT_NEAR(sum / kSamples, (low + high) / 2, 4 * (high - low) / std::sqrt(12.0 * kSamples));
}

// Each change, applied alone, must cover the range of its option. The other options are 0.
TEST(AugmentedImages, FactorsCoverTheirRange) {
  const auto byte = [](std::size_t at) { return [at](const Bytes& image) { return static_cast<double>(image[at]); }; };
  for (std::size_t at = 0; at < 6; ++at) {
    expect_uniform({.brightness = 0.4}, Bytes(6, 100), 60, 140, byte(at));
  }
  // Contrast moves values away from the mean of the image, which is grey 100.
  for (std::size_t at = 0; at < 6; ++at) {
    const bool dark = at < 3;
    expect_uniform({.contrast = 0.4}, {50, 50, 50, 150, 150, 150}, dark ? 30 : 130, dark ? 70 : 170, byte(at));
  }
  // Saturation moves values away from the pixel's own grey, weighted as in torchvision.
  const Bytes coloured{200, 100, 50, 10, 10, 10};
  const double grey = 0.2989 * 200 + 0.587 * 100 + 0.114 * 50;
  for (std::size_t at = 0; at < 3; ++at) {
    const double far = 0.6 * std::abs(coloured[at] - grey);
    expect_uniform({.saturation = 0.6}, coloured, coloured[at] - far, coloured[at] + far, byte(at));
    expect_uniform({.saturation = 0.6}, coloured, 10, 10, byte(3 + at));
  }
  // The hue of red is turned by at most 0.1 of the circle. At 1/6, red has become yellow, so green rises linearly from
  // 0 to 255; in the other direction blue rises. The difference green - blue is therefore uniform, and red stays 255.
  expect_uniform({.hue = 0.1}, {255, 0, 0, 10, 10, 10}, -0.6 * 255, 0.6 * 255,
                 [](const Bytes& image) { return static_cast<double>(image[1] - image[2]); });
  expect_uniform({.hue = 0.1}, {255, 0, 0, 10, 10, 10}, 255, 255, byte(0));
  // Changes of contrast, saturation and hue must not change a grey image.
  const AugmentedImages unchanged(images_of(9, 5, 3, 100), {.jitter = {0, 0.9, 0.9, 0.5}, .seed = 2});
  for (std::int64_t id = 0; id < 9; ++id) {
    EXPECT_EQ(image_of(unchanged, 0, id), Bytes(45, 100));
  }
}

TEST(AugmentedImages, TheOrderOfColoursIsRandom) {
  // Tests that brightness and contrast are applied in random order. The image is half black, half white. Samples with
  // more brightness and less contrast show the order. If brightness comes first, white stays 255 and the two values sum
  // to 255. If contrast comes first, their sum is larger.
  constexpr std::int64_t kSamples = 2000;
  const AugmentedImages set(copies_of(kSamples, {0, 0, 0, 255, 255, 255}), {.jitter = {0.9, 0.9, 0, 0}, .seed = 2});
  int seen = 0;
  int brightness_first = 0;
  for (std::int64_t id = 0; id < kSamples; ++id) {
    const Bytes image = image_of(set, 0, id);
    const int sum = image[0] + image[3];
    if (image[0] > 12 && sum >= 254) {
      ++seen;
      brightness_first += sum <= 256 ? 1 : 0;
    }
  }
  EXPECT_GT(seen, 300);
  EXPECT_NEAR(static_cast<double>(brightness_first) / seen, 0.5, 0.12);
}

TEST(AugmentedImages, OneRectangleIsErased) {
  constexpr std::int64_t kSamples = 1500;
  constexpr std::int64_t kHeight = 21;
  constexpr std::int64_t kWidth = 34;
  const AugmentedImages set(images_of(kSamples, kHeight, kWidth, 200), {.erase = 0.3, .fill = {1, 2, 3}, .seed = 8});
  int erased = 0;
  for (std::int64_t id = 0; id < kSamples; ++id) {
    const Bytes image = image_of(set, 2, id);
    std::int64_t top = kHeight, bottom = 0, left = kWidth, right = 0, count = 0;
    for (std::int64_t i = 0; i < kHeight * kWidth; ++i) {
      const std::uint8_t* pixel = image.data() + 3 * i;
      if (pixel[0] == 200) {
        continue;
      }
      ASSERT_TRUE(pixel[0] == 1 && pixel[1] == 2 && pixel[2] == 3);
      top = std::min(top, i / kWidth);
      bottom = std::max(bottom, i / kWidth + 1);
      left = std::min(left, i % kWidth);
      right = std::max(right, i % kWidth + 1);
      ++count;
    }
    if (count == 0) {
      continue;
    }
    ++erased;
    const auto h = static_cast<double>(bottom - top);
    const auto w = static_cast<double>(right - left);
    ASSERT_EQ(count, (bottom - top) * (right - left)) << "a rectangle, filled";
    ASSERT_GE((h + 0.5) * (w + 0.5), 0.02 * kHeight * kWidth);
    ASSERT_LE((h - 0.5) * (w - 0.5), 0.33 * kHeight * kWidth);
    ASSERT_TRUE((h - 0.5) / (w + 0.5) <= 10.0 / 3 && (w - 0.5) / (h + 0.5) <= 10.0 / 3) << h << " x " << w;
  }
  EXPECT_NEAR(static_cast<double>(erased) / kSamples, 0.3, 4 * std::sqrt(0.21 / kSamples));
  // An image of one pixel is too small for an erased rectangle, so it stays unchanged.
  const AugmentedImages tiny(images_of(3, 1, 1, 200), {.erase = 1});
  EXPECT_EQ(image_of(tiny, 0, 1), Bytes(3, 200));
}

TEST(AugmentedImages, MixturesAreTheFormula) {
  constexpr std::int64_t kHeight = 9;
  constexpr std::int64_t kWidth = 14;
  const AugmentedImages set(images_of(300, kHeight, kWidth), everything());
  const auto labels = images_of(300, kHeight, kWidth);
  int cut = 0;
  for (std::int64_t id = 0; id < 300; ++id) {
    const AugmentedImages::Mixture mix = set.mixture(3, id);
    const Sample sample = sample_of(set, 3, id);
    const Bytes own = image_of(set, 3, id);
    const Bytes other = image_of(set, 3, mix.other);
    cut += mix.cut ? 1 : 0;
    EXPECT_EQ(sample.label, labels->label(id));
    EXPECT_EQ(sample.other_label, labels->label(mix.other));
    ASSERT_NEAR(sample.share, mix.share, 1e-6);
    ASSERT_EQ(sample.share + sample.other_share, 1.0F);
    std::int64_t covered = 0;
    for (std::int64_t i = 0; i < kHeight * kWidth; ++i) {
      const bool inside = mix.cut && i / kWidth >= mix.top && i / kWidth < mix.bottom && i % kWidth >= mix.left &&
                          i % kWidth < mix.right;
      covered += inside ? 1 : 0;
      for (std::int64_t c = 0; c < 3; ++c) {
        const auto at = static_cast<std::size_t>(3 * i + c);
        const double expected =
            mix.cut ? (inside ? other[at] : own[at]) : mix.share * own[at] + (1 - mix.share) * other[at];
        ASSERT_FALSE(!(std::abs(sample.image[at] - expected) <= (mix.cut ? 0 : 0.5 + 1e-3))) << id << ' ' << at;
      }
    }
    if (mix.cut) {
      ASSERT_NEAR(1 - mix.share, static_cast<double>(covered) / (kHeight * kWidth), 1e-12);
    }
  }
  EXPECT_NEAR(cut, 150, 4 * std::sqrt(75.0));
}

TEST(AugmentedImages, SharesAreOfABetaDistribution) {
  constexpr std::int64_t kSamples = 20000;
  for (const double alpha : {0.01, 0.2, 1.0, 5.0, 100.0}) {
    const AugmentedImages set(images_of(kSamples, 1, 1), {.mixup = alpha, .seed = 4});
    double sum = 0;
    double squares = 0;
    double others = 0;
    for (std::int64_t id = 0; id < kSamples; ++id) {
      const AugmentedImages::Mixture mix = set.mixture(0, id);
      ASSERT_TRUE(mix.share >= 0 && mix.share <= 1) << mix.share;
      ASSERT_TRUE(mix.other >= 0 && mix.other < kSamples);
      sum += mix.share;
      squares += (mix.share - 0.5) * (mix.share - 0.5);
      others += static_cast<double>(mix.other);
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kSamples, 0.5, 4 * std::sqrt(variance / kSamples)) << alpha;
    EXPECT_NEAR(squares / kSamples, variance, 0.03 * variance) << alpha;
    EXPECT_NEAR(others / kSamples / kSamples, 0.5, 4 / std::sqrt(12.0 * kSamples)) << alpha;
  }
}

TEST(AugmentedImages, AreTheSameForAnyNumberOfRanksAndWorkers) {
  constexpr std::int64_t kSamples = 53;
  const AugmentedImages set(images_of(kSamples, 11, 7), everything());
  std::vector<std::vector<Sample>> runs;
  for (const auto& [ranks, workers] : {std::pair(1, 0), std::pair(1, 1), std::pair(1, 3), std::pair(2, 3)}) {
    std::vector<Sample> seen(kSamples);
    for (int rank = 0; rank < ranks; ++rank) {
      const Sampler sampler(
          {.size = kSamples, .batch_size = 10, .ranks = ranks, .rank = rank, .keep_last = true, .seed = 1});
      HostMemoryResource memory;
      Loader loader(set, sampler, memory, {.workers = workers, .epoch = 2});
      for (std::int64_t b = 0; b < sampler.batches(); ++b) {
        const Batch& batch = loader.next();
        for (std::int64_t row = 0; row < batch.valid; ++row) {
          const auto r = static_cast<std::size_t>(row);
          const std::int64_t id = batch.view(StateField::sample_ids).span<std::int64_t>()[r];
          const auto images = batch.view(StateField::images).span<std::uint8_t>();
          Sample& sample = seen[static_cast<std::size_t>(id)];
          sample.image.assign(images.begin() + row * 231, images.begin() + (row + 1) * 231);
          sample.label = batch.view(StateField::labels).span<std::int32_t>()[r];
          sample.other_label = batch.view(StateField::other_labels).span<std::int32_t>()[r];
          sample.share = batch.view(StateField::shares).span<float>()[r];
          sample.other_share = batch.view(StateField::other_shares).span<float>()[r];
        }
      }
    }
    runs.push_back(seen);
  }
  for (const std::vector<Sample>& run : runs) {
    EXPECT_EQ(run, runs[0]);
  }
  for (std::int64_t id = 0; id < kSamples; ++id) {
    EXPECT_EQ(runs[0][static_cast<std::size_t>(id)], sample_of(set, 2, id)) << id;
    EXPECT_NE(sample_of(set, 3, id), sample_of(set, 2, id)) << "another epoch, sample " << id;
  }
  AugmentationOptions other = everything();
  other.seed = 10;
  const AugmentedImages reseeded(images_of(kSamples, 11, 7), other);
  EXPECT_NE(sample_of(reseeded, 2, 0), sample_of(set, 2, 0));
  EXPECT_NE(reseeded.fingerprint(), set.fingerprint());
}

TEST(AugmentedImages, AStepLeavesTheDrawsOfTheOthers) {
  AugmentationOptions options = everything();
  const AugmentedImages with(images_of(20, 16, 16), options);
  options.erase = 0;
  options.mixup = 2;
  const AugmentedImages without(images_of(20, 16, 16), options);
  int same = 0;
  for (std::int64_t id = 0; id < 20; ++id) {
    const Bytes a = image_of(with, 0, id);
    const Bytes b = image_of(without, 0, id);
    for (std::size_t i = 0; i < a.size(); i += 3) {
      const bool filled = a[i] == 1 && a[i + 1] == 2 && a[i + 2] == 3;
      ASSERT_TRUE(filled || (a[i] == b[i] && a[i + 1] == b[i + 1] && a[i + 2] == b[i + 2])) << id << ' ' << i;
    }
    same += a == b ? 1 : 0;
  }
  EXPECT_TRUE(same > 0 && same < 20) << same;
}

TEST(AugmentedImages, AreReadAsTheyAreOutsideOfAnEpoch) {
  const auto raw = images_of(4, 5, 6);
  const AugmentedImages set(images_of(4, 5, 6), everything());
  Bytes expected(90);
  raw->read(2, expected);
  Sample sample{Bytes(90)};
  const std::array<std::span<std::byte>, 5> out{std::as_writable_bytes(std::span(sample.image)), bytes_of(sample.label),
                                                bytes_of(sample.other_label), bytes_of(sample.share),
                                                bytes_of(sample.other_share)};
  set.read_sample(2, out);
  EXPECT_EQ(sample, (Sample{expected, 2, 2, 1, 0}));
}

TEST(AugmentedImages, BadOptionsAreRefused) {
  const double nan = std::nan("");
  const auto refused = [](const AugmentationOptions& options, const std::vector<std::string>& words) {
    testing::expect_error<UsageError>([&] { const AugmentedImages set(images_of(2, 3, 3), options); }, words);
  };
  for (const double bad : {-0.1, nan, static_cast<double>(INFINITY)}) {
    refused({.jitter = {.brightness = bad}}, {"brightness", "expected 0 to 100"});
    refused({.jitter = {.contrast = bad}}, {"contrast", "expected 0 to 100"});
    refused({.jitter = {.saturation = bad}}, {"saturation", "expected 0 to 100"});
    refused({.jitter = {.hue = bad}}, {"hue", "expected 0 to 0.5"});
    refused({.erase = bad}, {"erasing", "expected 0 to 1"});
    refused({.mixup = bad}, {"mixup", "alpha", "0.01 to 100"});
    refused({.cutmix = bad}, {"cutmix", "alpha", "0.01 to 100"});
    refused({.crop = CropOptions{.area = {0.1, bad}}}, {"0.1", "least <= most <= 1"});
    refused({.crop = CropOptions{.ratio = {bad, 2}}}, {"ratio", "least <= most"});
  }
  refused({.crop = CropOptions{.ratio = {1, INFINITY}}}, {"ratio", "inf"});
  refused({.jitter = {.hue = 0.51}}, {"hue is 0.51"});
  refused({.erase = 1.5}, {"1.5"});
  refused({.mixup = 1e-3}, {"0.001"});
  refused({.pad = -1}, {"pad is -1"});
  refused({.crop = CropOptions{}, .pad = 1}, {"pad is 1 and resized parts are on"});
  EXPECT_THROW(AugmentedImages(nullptr, {}), UsageError);
  EXPECT_EQ(text_of(AugmentationOptions{}), "");
  EXPECT_EQ(text_of(everything()),
            "padded by 2 and cropped, mirrored, RandAugment of 2 operations, magnitude 9, colour jitter 0.4 0.4 0.4 "
            "0.1, erased with probability 0.5, mixup 0.4, "
            "cutmix 1");
}

TEST(AugmentedImages, EveryDigitIsToldApart) {
  const AugmentationOptions plain{
      .crop = CropOptions{}, .jitter = {0.4, 0.4, 0.4, 0.1}, .erase = 0.5, .mixup = 0.4, .cutmix = 1};
  const AugmentedImages set(images_of(2, 3, 3), plain);
  constexpr double kLittle = 1e-9;
  std::vector<AugmentationOptions> others(13, plain);
  others[0].crop->area[0] += kLittle;
  others[1].crop->area[1] -= kLittle;
  others[2].crop->ratio[0] += kLittle;
  others[3].crop->ratio[1] += kLittle;
  others[4].jitter.brightness += kLittle;
  others[5].jitter.contrast += kLittle;
  others[6].jitter.saturation += kLittle;
  others[7].jitter.hue += kLittle;
  others[8].erase += kLittle;
  others[9].mixup += kLittle;
  others[10].cutmix += kLittle;
  others[11].automatic = AutoAugment::trivial;
  others[12].automatic = AutoAugment::rand;
  for (const AugmentationOptions& other : others) {
    EXPECT_NE(text_of(other), text_of(plain));
    EXPECT_NE(AugmentedImages(images_of(2, 3, 3), other).fingerprint(), set.fingerprint()) << text_of(other);
  }
  EXPECT_EQ(AugmentedImages(images_of(2, 3, 3), plain).fingerprint(), set.fingerprint());
}

TEST(PngFile, IsThePictureThatWasWritten) {
  if (!images::available()) {
    EXPECT_THROW((void)images::encode_png({1, 1, 1, {0, 0, 0}}), UnsupportedError);
    return;
  }
  images::Picture picture{13, 7};
  Random random(5, RandomUse::test);
  for (int i = 0; i < 13 * 7 * 3; ++i) {
    picture.pixels.push_back(static_cast<std::uint8_t>(random.below(256)));
  }
  const std::string file = images::encode_png(picture);
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  images::Picture read;
  images::decode(bytes, "made", images::read_header(bytes, "made"), 1, read);
  EXPECT_EQ(read.width, 13);
  EXPECT_EQ(read.height, 7);
  EXPECT_EQ(read.pixels, picture.pixels);
}

}  // namespace
}  // namespace lockstep::nn

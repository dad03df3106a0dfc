// Tests TrivialAugment and RandAugment. Compares each operation with torchvision's at all magnitudes. Tests how often
// each operation is drawn, and when it is applied among the other steps of augmentation.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/images/auto_augment.hpp>
#include <lockstep/nn/data/images/picture_ops.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using images::Chosen;
using images::Extent;
using images::PictureOp;
using Bytes = std::vector<std::uint8_t>;

struct MagnitudeCase {
  std::string policy;
  std::string op;
  bool has_sign;
  std::vector<double> magnitudes;
};
struct OpCase {
  std::string op;
  double magnitude;
  std::int64_t height, width;
  std::string expected;
};
#include "tests/nn/data/torchvision_auto_augment.inc"

PictureOp op_called(const std::string& name) {
  for (int op = 0; op < images::kPictureOps; ++op) {
    if (name == images::name_of(static_cast<PictureOp>(op))) {
      return static_cast<PictureOp>(op);
    }
  }
  ADD_FAILURE() << "there is no operation " << name;
  return PictureOp::identity;
}

Bytes bytes_of(const std::string& digits) {
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::strtol(digits.substr(i, 2).c_str(), nullptr, 16)));
  }
  return bytes;
}

TEST(PictureOps, AreTorchvisionsByteForByte) {
  const std::map<std::pair<std::int64_t, std::int64_t>, Bytes> pictures{{{9, 13}, bytes_of(kSmallPicture)},
                                                                        {{21, 19}, bytes_of(kLargePicture)},
                                                                        {{5, 2}, bytes_of(kNarrowPicture)},
                                                                        {{20, 15}, Bytes(900, 77)}};
  Bytes copy;
  std::set<std::string> ops;
  int changed = 0;
  for (const OpCase& item : kOpCases) {
    const Bytes& picture = pictures.at({item.height, item.width});
    const Bytes expected = bytes_of(item.expected);
    Bytes image = picture;
    ASSERT_EQ(image.size(), expected.size());
    images::apply(op_called(item.op), item.magnitude, {item.width, item.height}, image, copy);
    for (std::size_t i = 0; i < image.size(); ++i) {
      ASSERT_EQ(image[i], expected[i]) << item.op << ' ' << item.magnitude << ", " << item.height << " x " << item.width
                                       << ", byte " << i << ", before " << int{picture[i]};
    }
    ops.insert(item.op);
    changed += image == picture ? 0 : 1;
  }
  EXPECT_EQ(ops.size(), static_cast<std::size_t>(images::kPictureOps));
  EXPECT_GT(changed, 45) << "the oracle changes pictures";
}

TEST(PictureOps, TurnsByQuartersMoveEveryPixel) {
  const Bytes picture = bytes_of(kLargePicture);
  constexpr std::int64_t kSide = 18;  // even, so that a turn by 90 degrees maps every pixel exactly onto a pixel
  const Bytes square(picture.begin(), picture.begin() + kSide * kSide * 3);
  const auto pixel = [&](const Bytes& image, std::int64_t y, std::int64_t x) {
    const std::size_t at = static_cast<std::size_t>(y * kSide + x) * 3;
    return std::tuple(image[at], image[at + 1], image[at + 2]);
  };
  Bytes copy;
  Bytes left = square;
  Bytes half = square;
  images::apply(PictureOp::rotate, 90, {kSide, kSide}, left, copy);
  images::apply(PictureOp::rotate, -180, {kSide, kSide}, half, copy);
  for (std::int64_t y = 0; y < kSide; ++y) {
    for (std::int64_t x = 0; x < kSide; ++x) {
      ASSERT_EQ(pixel(left, kSide - 1 - x, y), pixel(square, y, x)) << "counterclockwise";
      ASSERT_EQ(pixel(half, kSide - 1 - y, kSide - 1 - x), pixel(square, y, x));
    }
  }
}

TEST(AutoAugment, MagnitudesAreTorchvisions) {
  ASSERT_EQ(kMagnitudeCases.size(), 2U * images::kPictureOps);
  for (std::size_t i = 0; i < kMagnitudeCases.size(); ++i) {
    const MagnitudeCase& item = kMagnitudeCases[i];
    const PictureOp op = op_called(item.op);
    EXPECT_EQ(static_cast<std::size_t>(op), i % images::kPictureOps) << "the order of torchvision";
    EXPECT_EQ(images::has_sign(op), item.has_sign) << item.op;
    for (std::size_t bin = 0; bin < std::max<std::size_t>(item.magnitudes.size(), 1); ++bin) {
      const double expected = item.magnitudes.empty() ? 0 : item.magnitudes[bin];
      const double found =
          images::magnitude_of(parse_auto_augment(item.policy), op, static_cast<int>(bin), Extent{13, 9});
      EXPECT_FALSE(!(std::abs(found - expected) <= 2e-7 * std::abs(expected)))
          << item.policy << ' ' << item.op << ' ' << bin << ": " << found << ", torchvision " << expected;
      EXPECT_EQ(std::trunc(found), std::trunc(expected)) << item.policy << ' ' << item.op << ' ' << bin;
    }
  }
}

TEST(AutoAugment, OperationsMagnitudesAndSignsAreEquallyFrequent) {
  constexpr int kDraws = 84000;
  Random random(3, RandomUse::test);
  std::map<PictureOp, int> ops;
  std::map<double, int> turns;
  int negative = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::vector<Chosen> chosen = images::choose(AutoAugment::trivial, {32, 32}, random);
    ASSERT_EQ(chosen.size(), 1U);
    ++ops[chosen[0].op];
    if (chosen[0].op == PictureOp::rotate) {
      ++turns[std::abs(chosen[0].magnitude)];
    }
    negative += chosen[0].op == PictureOp::color && chosen[0].magnitude < 0 ? 1 : 0;
    EXPECT_GE(chosen[0].magnitude, images::has_sign(chosen[0].op) ? -135 : 0);
  }
  const double each = static_cast<double>(kDraws) / images::kPictureOps;
  ASSERT_EQ(ops.size(), static_cast<std::size_t>(images::kPictureOps));
  for (const auto& [op, count] : ops) {
    EXPECT_NEAR(count, each, 5 * std::sqrt(each)) << images::name_of(op);
  }
  ASSERT_EQ(turns.size(), static_cast<std::size_t>(images::kMagnitudes));
  for (const auto& [magnitude, count] : turns) {
    EXPECT_NEAR(count, each / images::kMagnitudes, 5 * std::sqrt(each / images::kMagnitudes)) << magnitude;
  }
  EXPECT_NEAR(negative, each / 2 * 30 / 31, 5 * std::sqrt(each / 4)) << "magnitude 0 has no sign";

  std::map<std::pair<PictureOp, PictureOp>, int> pairs;
  for (int i = 0; i < kDraws; ++i) {
    const std::vector<Chosen> chosen = images::choose(AutoAugment::rand, {100, 50}, random);
    ASSERT_EQ(chosen.size(), 2U);
    ++pairs[{chosen[0].op, chosen[1].op}];
    for (const Chosen& one : chosen) {
      EXPECT_EQ(std::abs(one.magnitude), images::magnitude_of(AutoAugment::rand, one.op, 9, {100, 50}));
    }
  }
  EXPECT_EQ(pairs.size(), 196U) << "the second does not depend on the first";
  EXPECT_TRUE(images::choose(AutoAugment::none, {8, 8}, random).empty());
}

std::unique_ptr<ImageDataset> random_images(std::int64_t size, std::int64_t height, std::int64_t width) {
  Random random(11, RandomUse::test);
  Bytes pixels(static_cast<std::size_t>(size * height * width * 3));
  std::generate(pixels.begin(), pixels.end(), [&] { return static_cast<std::uint8_t>(random.below(256)); });
  return std::make_unique<detail::StoredImages>(DatasetInfo{"images", size, height, width, 2}, 3, std::move(pixels),
                                                Bytes(static_cast<std::size_t>(size)));
}

Bytes image_of(const AugmentedImages& set, std::int64_t index) {
  Bytes image(set.fields()[0].bytes());
  set.read_unmixed(4, index, image);
  return image;
}

/// Returns whether some operation of TrivialAugment with one of its magnitudes turns `image` into `made`.
bool is_made_of(const Bytes& image, const Bytes& made, const Extent& size) {
  Bytes copy;
  for (int op = 0; op < images::kPictureOps; ++op) {
    for (int bin = 0; bin < images::kMagnitudes; ++bin) {
      for (const double sign : {1.0, -1.0}) {
        Bytes changed = image;
        const auto which = static_cast<PictureOp>(op);
        const double magnitude = images::magnitude_of(AutoAugment::trivial, which, bin, size);
        images::apply(which, images::has_sign(which) ? sign * magnitude : magnitude, size, changed, copy);
        if (changed == made) {
          return true;
        }
      }
    }
  }
  return false;
}

TEST(AutoAugment, ComesBehindTheMirrorAndBeforeErasing) {
  constexpr std::int64_t kImages = 40;
  constexpr Extent kSize{7, 11};
  const auto set = [&](const AugmentationOptions& options) {
    return AugmentedImages(random_images(kImages, kSize.height, kSize.width), options);
  };
  const AugmentedImages mirrored = set({.flip = true, .seed = 6});
  const AugmentedImages changed = set({.flip = true, .automatic = AutoAugment::trivial, .seed = 6});
  const AugmentedImages erased =
      set({.flip = true, .automatic = AutoAugment::trivial, .erase = 1, .fill = {1, 2, 3}, .seed = 6});
  const AugmentedImages twice = set({.flip = true, .automatic = AutoAugment::rand, .seed = 6});
  int differ = 0;
  int erasures = 0;
  for (std::int64_t id = 0; id < kImages; ++id) {
    const Bytes before = image_of(mirrored, id);
    const Bytes after = image_of(changed, id);
    EXPECT_TRUE(is_made_of(before, after, kSize)) << id;
    differ += before == after ? 0 : 1;
    const Bytes last = image_of(erased, id);
    for (std::size_t i = 0; i < last.size(); i += 3) {
      const bool filled = last[i] == 1 && last[i + 1] == 2 && last[i + 2] == 3;
      EXPECT_TRUE(filled || std::equal(&last[i], &last[i] + 3, &after[i])) << id;
      erasures += filled ? 1 : 0;
    }
    EXPECT_EQ(image_of(twice, id), image_of(twice, id));
  }
  EXPECT_GT(differ, kImages / 2);
  EXPECT_GT(erasures, kImages);
  EXPECT_NE(image_of(twice, 0), image_of(changed, 0));
}

TEST(AutoAugment, OtherNamesAreRefused) {
  EXPECT_EQ(parse_auto_augment("none"), AutoAugment::none);
  for (const char* name : {"", "Trivial", "ta_wide", "rand2"}) {
    testing::expect_holds(testing::error_of<UsageError>([&] { (void)parse_auto_augment(name); }),
                          concat("--auto-augment is '", name, "', expected none, trivial or rand"));
  }
}

}  // namespace
}  // namespace lockstep::nn

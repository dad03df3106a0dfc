#include <cmath>
#include <set>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

DataOptions small(std::uint64_t seed = 1) {
  return {.seed = seed, .synthetic = {200, 60, 32, 32, 10}};
}

std::vector<std::uint8_t> image(const ImageDataset& dataset, std::int64_t index) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(dataset.image_bytes()));
  dataset.read(index, out);
  return out;
}

TEST(Synthetic, DependsOnSeedSplitAndIndexOnly) {
  const DataSplit a = open_data(small());
  DataOptions larger = small();
  larger.synthetic.train_size = 5000;
  const DataSplit b = open_data(larger);
  const DataSplit other = open_data(small(2));
  std::set<std::vector<std::uint8_t>> distinct;
  for (std::int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(image(*a.train, i), image(*b.train, i));
    EXPECT_EQ(a.train->label(i), b.train->label(i));
    EXPECT_NE(image(*a.train, i), image(*other.train, i));
    distinct.insert(image(*a.train, i));
    distinct.insert(image(*a.test, i));
  }
  EXPECT_EQ(distinct.size(), 120U);
}

TEST(Synthetic, FingerprintsTellSetsApart) {
  DataOptions sizes = small();
  sizes.synthetic.train_size = 201;
  DataOptions classes = small();
  classes.synthetic.classes = 11;
  DataOptions wide = small();
  wide.synthetic.width = 33;
  const auto reference = open_data(small());
  EXPECT_EQ(open_data(small()).train->fingerprint(), reference.train->fingerprint());
  const std::set<std::uint64_t> all = {reference.train->fingerprint(),           reference.test->fingerprint(),
                                       open_data(small(2)).train->fingerprint(), open_data(sizes).train->fingerprint(),
                                       open_data(classes).train->fingerprint(),  open_data(wide).train->fingerprint()};
  EXPECT_EQ(all.size(), 6U);
}

// Builds on all machines must give these numbers; otherwise ranks would train on different images.
TEST(Synthetic, HasTheSamePixelsEverywhere) {
  EXPECT_EQ(open_data(small()).train->fingerprint(), 15757431999659877952ULL);
  EXPECT_EQ(open_data({.seed = 1, .synthetic = {200, 60, 33, 20, 20}}).train->fingerprint(), 6138256874807599854ULL);
  EXPECT_EQ(open_data({.seed = 1, .synthetic = {1120, 60, 40, 40, 1120}}).train->fingerprint(),
            12864394058475016126ULL);
  EXPECT_EQ(open_data({.seed = 1, .synthetic = {1120, 60, 24, 517, 1120}}).train->fingerprint(), 3879323513182729133ULL)
      << "rows in several pieces";
}

// The label of image i is i modulo the number of classes; position, colours and noise follow from i alone. The test
// draws the same image i with decreasing numbers of classes: only its label, and so its figure, changes. All drawn
// images must differ.
TEST(Synthetic, EveryClassHasAFigureOfItsOwn) {
  constexpr int kMost = 1120;
  for (int first = 0; first < kMost;) {
    const int index = first + kMost;
    std::set<std::vector<std::uint8_t>> distinct;
    int drawn = 0;
    for (; first < kMost && index - first > first; ++first, ++drawn) {
      const DataSplit split = detail::open_synthetic({index + 1, 1, 48, 48, index - first}, 1);
      ASSERT_EQ(split.train->label(index), first);
      distinct.insert(image(*split.train, index));
    }
    EXPECT_EQ(distinct.size(), static_cast<std::size_t>(drawn)) << "classes up to " << first;
  }
}

TEST(Synthetic, ClassesAreBalancedAndInRange) {
  const DataSplit split = open_data(small());
  std::vector<int> count(10);
  for (std::int64_t i = 0; i < split.train->size(); ++i) {
    ++count.at(static_cast<std::size_t>(split.train->label(i)));
  }
  EXPECT_EQ(count, std::vector<int>(10, 20));
}

// A linear classifier must learn nothing from these images. So the mean images of two classes may differ only by the
// noise of their samples.
TEST(Synthetic, ClassMeansAreAlike) {
  DataOptions options = small();
  options.synthetic.train_size = 4000;
  const DataSplit split = open_data(options);
  const auto pixels = static_cast<std::size_t>(split.train->image_bytes());
  std::vector<std::vector<double>> mean(10, std::vector<double>(pixels));
  for (std::int64_t i = 0; i < 4000; ++i) {
    const auto values = image(*split.train, i);
    auto& sum = mean[static_cast<std::size_t>(split.train->label(i))];
    for (std::size_t p = 0; p < pixels; ++p) {
      sum[p] += values[p] / 400.0;
    }
  }
  // The standard deviation of a pixel is about 57, of a mean of 400 pixels about 2.9, of a difference of two means 4.
  for (std::size_t a = 0; a < 10; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      double square = 0;
      for (std::size_t p = 0; p < pixels; ++p) {
        square += std::pow(mean[a][p] - mean[b][p], 2) / static_cast<double>(pixels);
      }
      EXPECT_LT(std::sqrt(square), 8.0) << a << ' ' << b;
    }
  }
}

TEST(Synthetic, AnySizeAndNumberOfClasses) {
  for (const auto& [height, width, classes] : {std::tuple{8, 8, 2}, {9, 31, 20}, {224, 100, 13}, {48, 48, 1000}}) {
    const DataSplit split = open_data({.synthetic = {40, 40, height, width, classes}});
    EXPECT_EQ(split.train->height(), height);
    EXPECT_EQ(split.train->width(), width);
    EXPECT_EQ(split.train->classes(), classes);
    for (std::int64_t i = 0; i < 40; ++i) {
      const auto values = image(*split.test, i);
      EXPECT_GT(std::set<std::uint8_t>(values.begin(), values.end()).size(), 10U);
    }
  }
}

TEST(Synthetic, BadOptionsAreRefused) {
  const auto open = [](SyntheticOptions synthetic) { return [=] { (void)open_data({.synthetic = synthetic}); }; };
  expect_holds(error_of<UsageError>(open({10, 10, 32, 32, 1})), "1 classes");
  expect_holds(error_of<UsageError>(open({10, 10, 32, 32, 1121})), "1121 classes, expected 2 to 1120");
  expect_holds(error_of<UsageError>(open({10, 10, 7, 32, 10})), "7 x 32");
  expect_holds(error_of<UsageError>(open({10, 10, 32, 5000, 10})), "32 x 5000");
  expect_holds(error_of<UsageError>(open({0, 10, 32, 32, 10})), "0 images");
  expect_holds(error_of<UsageError>(open({10, -1, 32, 32, 10})), "-1 images");
  for (const char* spec : {"", "mnist", "synthetic:x", "cifar10", "cifar10:", "idx", "idx:", ":x"}) {
    expect_holds(error_of<UsageError>([&] { (void)open_data({.spec = spec}); }),
                 "expected synthetic, cifar10:DIR, idx:DIR, folder:DIR, list:FILE or packed:FILE");
  }
}

TEST(Dataset, LiesByClassOrNot) {
  // Returns lies_by_class() of a data set with these labels. The images are black, of 8 x 8 pixels and one channel.
  const auto by_class = [](const std::vector<std::uint8_t>& labels, int classes) {
    const DatasetInfo info{"labels", static_cast<std::int64_t>(labels.size()), 8, 8, classes};
    return lies_by_class(detail::StoredImages(info, 1, std::vector<std::uint8_t>(64 * labels.size()), labels));
  };
  std::vector<std::uint8_t> labels;
  for (int i = 0; i < 100; ++i) {
    labels.push_back(static_cast<std::uint8_t>(i / 10));
  }
  EXPECT_TRUE(by_class(labels, 10));
  std::vector<std::uint8_t> mixed;
  for (int i = 0; i < 100; ++i) {
    mixed.push_back(labels[static_cast<std::size_t>(37 * i % 100)]);
  }
  EXPECT_FALSE(by_class(mixed, 10));
  EXPECT_FALSE(by_class(std::vector<std::uint8_t>(100, 1), 2)) << "one class has no other order";
  std::vector<std::uint8_t> rare(100, 0);
  rare[13] = rare[55] = rare[77] = 1;
  EXPECT_FALSE(by_class(rare, 2));
  std::vector<std::uint8_t> many;
  std::vector<std::uint8_t> moved;
  for (int i = 0; i < 60 * 64; ++i) {
    many.push_back(static_cast<std::uint8_t>(i / 64));
    moved.push_back(static_cast<std::uint8_t>(i % 60));
  }
  const auto separated = [](const std::vector<std::uint8_t>& of, int classes, std::int64_t chunk) {
    const DatasetInfo info{"labels", static_cast<std::int64_t>(of.size()), 8, 8, classes};
    return chunks_separate_classes(detail::StoredImages(info, 1, std::vector<std::uint8_t>(64 * of.size()), of), chunk);
  };
  EXPECT_TRUE(separated(many, 60, 64)) << "16 of 60 classes";
  EXPECT_TRUE(separated(many, 60, 2));
  EXPECT_FALSE(separated(many, 60, 0));
  EXPECT_FALSE(separated(many, 60, 1)) << "any sample follows any other";
  EXPECT_FALSE(separated(many, 60, 128)) << "30 chunks are one window";
  EXPECT_FALSE(separated(moved, 60, 64));
  EXPECT_FALSE(separated(labels, 10, 2)) << "16 chunks have all classes";
  rare.assign(100, 0);
  rare[97] = rare[98] = rare[99] = 1;
  EXPECT_TRUE(by_class(rare, 2));
}

// Expects the statistics of two images of four pixels, computed by hand: red is 0 in one image and 255 in the other,
// green is always 51, and blue is 0, 51, 102, 153 in both.
TEST(Dataset, ChannelStatistics) {
  class Two final : public ImageDataset {
   public:
    Two() : ImageDataset({"two", 2, 2, 2, 2}) {}
    std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index); }
    void read(std::int64_t index, std::span<std::uint8_t> out) const override {
      for (std::size_t p = 0; p < 4; ++p) {
        out[3 * p] = index == 0 ? 0 : 255;
        out[3 * p + 1] = 51;
        out[3 * p + 2] = static_cast<std::uint8_t>(51 * p);
      }
    }
    std::uint64_t fingerprint() const override { return 0; }
  };
  const ChannelStatistics all = channel_statistics(Two(), 1000);
  EXPECT_FLOAT_EQ(all.mean[0], 0.5F);
  EXPECT_FLOAT_EQ(all.std[0], 0.5F);
  EXPECT_FLOAT_EQ(all.mean[1], 0.2F);
  EXPECT_FLOAT_EQ(all.std[1], 1.0F);  // a constant channel has std 1
  EXPECT_FLOAT_EQ(all.mean[2], 0.3F);
  EXPECT_FLOAT_EQ(all.std[2], std::sqrt(0.05F));
  EXPECT_FLOAT_EQ(channel_statistics(Two(), 1).mean[0], 0.0F);
}

}  // namespace
}  // namespace lockstep::nn

// Tests the data set folder:DIR: the files that are found, the images that are made of these files, and bad input.
#include <map>

#include <sys/stat.h>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

#include "tests/nn/data/plain_resample.hpp"
#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"
#include "tests/support/no_threads.hpp"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::error_of, testing::expect_holds, testing::Pixels, testing::pixels;

using Image = std::vector<std::uint8_t>;
/// A function that returns an image's value at (row, column, channel).
using Picture = std::function<int(std::int64_t, std::int64_t, int)>;

int waves(std::int64_t y, std::int64_t x, int c) {
  return static_cast<int>(128 + 60 * std::sin(0.21 * static_cast<double>(x) + c) +
                          60 * std::cos(0.17 * static_cast<double>(y) - c));
}

Image read(const ImageDataset& set, std::int64_t index) {
  Image image(static_cast<std::size_t>(set.image_bytes()));
  set.read(index, image);
  return image;
}

Image read_in(const ImageDataset& set, std::int64_t epoch, std::int64_t index) {
  Image image(static_cast<std::size_t>(set.image_bytes()));
  set.read_in(epoch, index, image);
  return image;
}

int difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.size(), b.size());
  int most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(int{a[i]} - int{b[i]}));
  }
  return most;
}

class ImageFolder : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    testing::put_file(folder_ / name, bytes);
  }
  /// Writes an image of one grey value, by which it can be recognised.
  void put_grey(const std::string& name, int value) const {
    put(name, png(pixels(4, 4, 1, [&](std::int64_t, std::int64_t, int) { return value; })));
  }
  /// Writes two classes with `count` images each in train, and one image each in val.
  void put_two_classes(int count = 2) const {
    for (int i = 0; i < count; ++i) {
      put_grey(concat("train/a/", i, ".png"), i);
      put_grey(concat("train/b/", i, ".png"), 100 + i);
    }
    put_grey("val/a/x.png", 200);
    put_grey("val/b/x.png", 201);
  }
  [[nodiscard]] DataOptions options(std::int64_t image_size = 4) const {
    return {.spec = "folder:" + folder_.path(), .seed = 7, .folder = {.image_size = image_size}};
  }
  [[nodiscard]] std::string refused(const DataOptions& given) const {
    return error_of<DataError>([&] { (void)open_data(given); });
  }
  [[nodiscard]] std::string usage(const DataOptions& given) const {
    return error_of<UsageError>([&] { (void)open_data(given); });
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ImageFolder, ClassesAreFoldersInTheOrderOfTheirBytes) {
  for (const std::string part : {"train", "test"}) {
    put_grey(part + "/b/1.png", 10);
    put_grey(part + "/Z/1.PNG", 20);
    put_grey(part + "/\xff\xfe/1.png", 30);  // a name that is not UTF-8
    put_grey(part + "/a/deep/er/1.png", 40);
    put_grey(part + "/a/0.png", 50);
    put(part + "/a/notes.txt", "no image");
    put_grey(part + "/.hidden/1.png", 60);
    put_grey(part + "/a/.1.png", 60);
    put_grey(part + "/beside.png", 60);
  }
  const DataSplit data = open_data(options());
  EXPECT_EQ(data.train->classes(), 4);
  ASSERT_EQ(data.train->size(), 5);
  ASSERT_EQ(data.test->size(), 5);
  // Classes are sorted by the bytes of their names: Z, a, b, then names with bytes above 127. Within a class, a/0.png
  // comes before a/deep.
  const std::vector<std::pair<int, int>> expected{{0, 20}, {1, 50}, {1, 40}, {2, 10}, {3, 30}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    EXPECT_EQ(data.train->label(index), expected[i].first) << i;
    EXPECT_EQ(read(*data.test, index)[5], expected[i].second) << i;
    EXPECT_EQ(read_in(*data.train, 3, index)[5], expected[i].second) << i;
  }
  EXPECT_FLOAT_EQ(data.statistics.mean[0], 0.485F);
  EXPECT_FLOAT_EQ(data.statistics.std[2], 0.225F);
  expect_holds(data.about, "test images are those of test");
}

TEST_F(ImageFolder, TestImagesAreResizedAndCroppedInTheMiddle) {
  // Tests images that are wide, high and square, smaller and larger than the output.
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{61, 40}, {33, 90}, {50, 50}, {7, 5}, {16, 14}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    put(concat("train/a/", i, ".png"), png(pixels(sizes[i].first, sizes[i].second, 3, waves)));
    put(concat("val/a/", i, ".png"), png(pixels(sizes[i].first, sizes[i].second, 3, waves)));
  }
  for (const auto& [given, resize] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 16}, {14, 14}, {29, 29}}) {
    constexpr std::int64_t kSize = 14;  // 14 * 256 / 224 is 16
    DataOptions wanted = options(kSize);
    wanted.folder.resize = given;
    wanted.folder.random_crops = false;
    const DataSplit data = open_data(wanted);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::int64_t width = sizes[i].first;
      const std::int64_t height = sizes[i].second;
      // Computes the sizes and the offset of torchvision's Resize and CenterCrop.
      const std::int64_t wide = width <= height ? resize : resize * width / height;
      const std::int64_t high = width <= height ? resize * height / width : resize;
      const auto left = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(wide - kSize) / 2));
      const auto top = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(high - kSize) / 2));
      const double step_x = static_cast<double>(width) / static_cast<double>(wide);
      const double step_y = static_cast<double>(height) / static_cast<double>(high);
      const Image image = read(*data.test, static_cast<std::int64_t>(i));
      std::size_t at = 0;
      for (std::int64_t y = 0; y < kSize; ++y) {
        for (std::int64_t x = 0; x < kSize; ++x) {
          for (int c = 0; c < 3; ++c, ++at) {
            const double expected = testing::plain_mean(
                (static_cast<double>(top + y) + 0.5) * step_y, step_y, 0, height, [&](std::int64_t row) {
                  return testing::plain_mean(
                      (static_cast<double>(left + x) + 0.5) * step_x, step_x, 0, width,
                      [&](std::int64_t column) { return static_cast<double>(waves(row, column, c)); });
                });
            ASSERT_TRUE(std::abs(image[at] - expected) <= 0.5 + 1e-3)
                << width << " x " << height << " at (" << y << ", " << x << ", " << c << "): " << int{image[at]}
                << ", expected " << expected;
          }
        }
      }
      EXPECT_EQ(read_in(*data.train, 5, static_cast<std::int64_t>(i)), image) << "training images likewise";
    }
  }
}

TEST_F(ImageFolder, PicturesAreTurnedAsExifSays) {
  // Expects that all eight orientations of EXIF 2.3 give the same upright image. Each function returns the pixels as
  // the file stores them; its comment names the sides of the upright image at which row 0 and column 0 are stored.
  constexpr std::int64_t kWide = 40;
  constexpr std::int64_t kHigh = 24;
  const std::vector<Picture> stored{
      [](auto r, auto c, int k) { return waves(r, c, k); },                          // 1: top, left
      [](auto r, auto c, int k) { return waves(r, kWide - 1 - c, k); },              // 2: top, right
      [](auto r, auto c, int k) { return waves(kHigh - 1 - r, kWide - 1 - c, k); },  // 3: bottom, right
      [](auto r, auto c, int k) { return waves(kHigh - 1 - r, c, k); },              // 4: bottom, left
      [](auto r, auto c, int k) { return waves(c, r, k); },                          // 5: left, top
      [](auto r, auto c, int k) { return waves(c, kWide - 1 - r, k); },              // 6: right, top
      [](auto r, auto c, int k) { return waves(kHigh - 1 - c, kWide - 1 - r, k); },  // 7: right, bottom
      [](auto r, auto c, int k) { return waves(kHigh - 1 - c, r, k); }};             // 8: left, bottom
  for (int turn = 1; turn <= 8; ++turn) {
    const Pixels picture =
        pixels(turn < 5 ? kWide : kHigh, turn < 5 ? kHigh : kWide, 3, stored[static_cast<std::size_t>(turn - 1)]);
    put(concat("train/a/", turn, ".png"), png(picture, {.exif = testing::exif(turn)}));
    put(concat("val/a/", turn, ".jpg"), jpeg(picture, {.exif = testing::exif(turn, true)}));
  }
  const DataSplit data = open_data(options(12));
  const Image upright = read(*data.train, 0);
  for (std::int64_t i = 1; i < 8; ++i) {
    EXPECT_LE(difference(read(*data.train, i), upright), 1) << "orientation " << i + 1;
    // JPEG changes the values a little.
    EXPECT_LE(difference(read(*data.test, i), upright), 6) << "orientation " << i + 1;
  }
  // The control: without the orientation, the same pixels give another image.
  put("val/a/1.jpg", jpeg(pixels(kHigh, kWide, 3, stored[5])));
  EXPECT_GT(difference(read(*data.test, 0), upright), 50);
}

TEST_F(ImageFolder, LargeJpegsAreDecodedSmaller) {
  // The image is smooth, so that every correct method gives nearly the same pixels.
  const auto smooth = [](std::int64_t y, std::int64_t x, int c) {
    return static_cast<int>(128 + 100 * std::sin(0.011 * static_cast<double>(x) + 0.007 * static_cast<double>(y) + c));
  };
  for (const int turn : {1, 6}) {
    const Pixels picture = pixels(turn == 1 ? 643 : 481, turn == 1 ? 481 : 643, 3, smooth);
    put(concat("train/a/", turn, ".png"), png(picture, {.exif = testing::exif(turn)}));
    put(concat("val/a/", turn, ".jpg"), jpeg(picture, {.exif = testing::exif(turn)}));
  }
  for (const std::int64_t size : {14, 28, 56, 112}) {  // the decoder scales down by 8, 4, 2 and 1
    const DataSplit data = open_data(options(size));
    for (const std::int64_t i : {0, 1}) {
      EXPECT_LE(difference(read(*data.test, i), read(*data.train, i)), 4) << size;
    }
  }
}

TEST_F(ImageFolder, RandomPartsAreThoseOfTheirKeyAndWithinTheBounds) {
  // The colour of a pixel is its position: red is x, green is y.
  constexpr std::int64_t kWide = 250;
  constexpr std::int64_t kHigh = 200;
  const auto place = [](std::int64_t y, std::int64_t x, int c) {
    return static_cast<int>(c == 0 ? x : (c == 1 ? y : 0));
  };
  for (int i = 0; i < 4; ++i) {
    put(concat("train/a/", i, ".png"), png(pixels(kWide, kHigh, 3, place)));
  }
  put("val/a/x.png", png(pixels(kWide, kHigh, 3, place)));
  constexpr std::int64_t kSize = 16;
  const DataSplit data = open_data(options(kSize));
  double areas = 0;
  int mirrored = 0;
  int count = 0;
  for (std::int64_t epoch = 0; epoch < 150; ++epoch) {
    for (std::int64_t i = 0; i < 4; ++i, ++count) {
      const Image image = read_in(*data.train, epoch, i);
      // Computes the middle of the crop and the distance between its pixels. Uses pixels away from the edges.
      const auto value = [&](std::int64_t y, std::int64_t x, std::int64_t c) {
        return static_cast<double>(image[static_cast<std::size_t>((y * kSize + x) * 3 + c)]);
      };
      const double wide = (value(8, 12, 0) - value(8, 3, 0)) / 9 * kSize;
      const double high = (value(12, 8, 1) - value(3, 8, 1)) / 9 * kSize;
      mirrored += wide < 0 ? 1 : 0;
      const double area = std::abs(wide) * high / (kWide * kHigh);
      areas += area;
      EXPECT_TRUE(area > 0.06 && area < 1.05) << area;
      EXPECT_TRUE(std::abs(wide) / high > 0.70 && std::abs(wide) / high < 1.43) << std::abs(wide) / high;
      EXPECT_TRUE(high > 0 && high < kHigh + 4 && std::abs(wide) < kWide + 4);
      EXPECT_EQ(image, read_in(*data.train, epoch, i));
    }
  }
  // Areas of crops are uniform from 0.08 to 1 of the image, but some large crops do not fit. The number of mirrored
  // images has a standard deviation of 12.
  EXPECT_GT(areas / count, 0.42);
  EXPECT_LT(areas / count, 0.60);
  EXPECT_NEAR(mirrored, count / 2, 60);
  EXPECT_NE(read_in(*data.train, 0, 0), read_in(*data.train, 1, 0)) << "another epoch";
  EXPECT_NE(read_in(*data.train, 0, 0), read_in(*data.train, 0, 1)) << "another sample";
  DataOptions other = options(kSize);
  other.seed = 8;
  EXPECT_NE(read_in(*open_data(other).train, 0, 0), read_in(*data.train, 0, 0)) << "another seed";
  EXPECT_NE(open_data(other).train->fingerprint(), data.train->fingerprint());
  EXPECT_EQ(read_in(*data.test, 0, 0), read_in(*data.test, 1, 0)) << "test images stay";
  other = options(kSize);
  other.folder.flip = false;
  const DataSplit straight = open_data(other);
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const Image image = read_in(*straight.train, epoch, 0);
    EXPECT_LT(image[0], image[(kSize - 1) * 3]) << "not mirrored";
  }
}

TEST_F(ImageFolder, NarrowPicturesGiveTheirMiddle) {
  const auto place = [](std::int64_t y, std::int64_t x, int c) {
    return static_cast<int>(c == 0 ? x : (c == 1 ? y : 0));
  };
  put("train/a/wide.png", png(pixels(240, 2, 3, place)));
  put("train/a/high.png", png(pixels(2, 240, 3, place)));
  put("train/a/one.png", png(pixels(1, 1, 3, waves)));
  put_grey("val/a/x.png", 3);
  DataOptions given = options(8);
  given.folder.flip = false;
  const DataSplit data = open_data(given);
  for (std::int64_t epoch = 0; epoch < 30; ++epoch) {
    for (std::int64_t i = 0; i < 3; ++i) {
      const Image image = read_in(*data.train, epoch, i);
      EXPECT_LE(*std::max_element(image.begin(), image.end()), 240);
    }
  }
}

/// Returns the images that a loader gives in `batches` batches, by epoch and sample.
std::map<std::pair<std::int64_t, std::int64_t>, Image> loaded(const ImageDataset& set, int ranks, int workers) {
  std::map<std::pair<std::int64_t, std::int64_t>, Image> images;
  for (int rank = 0; rank < ranks; ++rank) {
    HostMemoryResource memory;
    const Sampler sampler({.size = set.size(), .batch_size = 4, .ranks = ranks, .rank = rank, .seed = 3});
    Loader loader(set, sampler, memory, {.workers = workers, .prefetch = 2});
    for (std::int64_t i = 0; i < 3 * sampler.batches(); ++i) {
      const Batch& batch = loader.next();
      const auto ids = batch.view(StateField::sample_ids).span<std::int64_t>();
      const auto pixels_of_all = batch.view(StateField::images).span<std::uint8_t>();
      const auto labels = batch.view(StateField::labels).span<std::int32_t>();
      const auto bytes = static_cast<std::size_t>(set.image_bytes());
      for (std::size_t row = 0; row < static_cast<std::size_t>(batch.valid); ++row) {
        const auto image = pixels_of_all.subspan(row * bytes, bytes);
        EXPECT_TRUE(images.emplace(std::pair(batch.epoch, ids[row]), Image(image.begin(), image.end())).second);
        EXPECT_EQ(labels[row], set.label(ids[row]));
      }
    }
  }
  return images;
}

TEST_F(ImageFolder, PicturesAreTheSameForAnyRanksAndWorkers) {
  for (int i = 0; i < 12; ++i) {
    const Pixels picture = pixels(30 + 5 * i, 60 - 3 * i, 3, waves);
    put(concat("train/", i % 3, "/", i, ".jpg"), jpeg(picture, {.quality = 80, .half_colours = true}));
  }
  for (int i = 0; i < 3; ++i) {
    put_grey(concat("val/", i, "/x.png"), i);
  }
  const DataSplit data = open_data(options(10));
  const auto one = loaded(*data.train, 1, 1);
  EXPECT_EQ(one.size(), 36U);
  for (const auto& [key, image] : one) {
    EXPECT_EQ(image, read_in(*data.train, key.first, key.second));
  }
  EXPECT_EQ(loaded(*data.train, 1, 4), one);
  EXPECT_EQ(loaded(*data.train, 1, 0), one);
  EXPECT_EQ(loaded(*data.train, 2, 1), one);
  EXPECT_EQ(loaded(*data.train, 2, 4), one);
}

TEST_F(ImageFolder, AFractionIsSplitOffEachClass) {
  std::map<int, int> values;  // class of each image, by its grey value
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 1 + 10 * c; ++i) {  // the classes have 1, 11 and 21 images
      put_grey(concat("class", c, "/", i, ".png"), 60 * c + i);
      values[60 * c + i] = c;
    }
  }
  DataOptions given = options();
  given.folder.val_fraction = 0.3;
  const auto all_of = [](const ImageDataset& set) {
    std::map<int, int> found;
    for (std::int64_t i = 0; i < set.size(); ++i) {
      EXPECT_TRUE(found.emplace(read(set, i)[0], set.label(i)).second);
    }
    return found;
  };
  const DataSplit data = open_data(given);
  auto train = all_of(*data.train);
  const auto test = all_of(*data.test);
  std::vector<int> of_class(3);
  for (const auto& [value, label] : test) {
    ++of_class[static_cast<std::size_t>(label)];
  }
  EXPECT_EQ(of_class, (std::vector<int>{0, 3, 6})) << "the only image of a class is trained on";
  train.insert(test.begin(), test.end());
  EXPECT_EQ(train, values) << "each image once, with its class";
  EXPECT_EQ(all_of(*open_data(given).test), test);
  expect_holds(data.about, "30 % of each class");
  given.seed = 8;
  EXPECT_NE(all_of(*open_data(given).test), test);

  // The test set must be the same if the class folders are below a folder named train.
  fs::create_directories(folder_ / "train");
  for (int c = 0; c < 3; ++c) {
    fs::rename(folder_ / concat("class", c), folder_ / concat("train/class", c));
  }
  given.seed = 7;
  EXPECT_EQ(all_of(*open_data(given).test), test);
  for (const double bad : {-0.1, 1.0, 2.0, std::nan("")}) {
    given.folder.val_fraction = bad;
    expect_holds(usage(given), "validation fraction is");
  }
}

TEST_F(ImageFolder, FingerprintsAreThoseOfNamesAndOptions) {
  put_two_classes();
  const std::uint64_t train = open_data(options()).train->fingerprint();
  const std::uint64_t test = open_data(options()).test->fingerprint();
  EXPECT_EQ(open_data(options()).train->fingerprint(), train);
  EXPECT_NE(train, test);
  EXPECT_NE(open_data(options(5)).test->fingerprint(), test);
  DataOptions other = options();
  other.folder.resize = 9;
  EXPECT_NE(open_data(other).test->fingerprint(), test);
  other = options();
  other.folder.flip = false;
  EXPECT_NE(open_data(other).train->fingerprint(), train);
  EXPECT_EQ(open_data(other).test->fingerprint(), test);
  fs::rename(folder_ / "val/a/x.png", folder_ / "val/a/y.png");
  EXPECT_NE(open_data(options()).test->fingerprint(), test);
}

TEST_F(ImageFolder, DamagedImagesAreFoundNamedAndLeftOut) {
  put_two_classes(5);
  const std::string good = testing::get_file(folder_ / "train/a/0.png");
  put("train/a/1.png", good.substr(0, good.size() - 7));
  put("train/b/3.png", "");
  put("val/b/y.jpg", jpeg(pixels(16, 16, 3, waves)).substr(0, 200));
  const std::vector<std::string> expected{"train/a/1.png", "train/b/3.png", "val/b/y.jpg"};
  for (const int parts : {1, 2, 5, 40}) {
    for (const int threads : {1, 4}) {
      std::vector<std::string> found;
      for (int part = 0; part < parts; ++part) {
        for (const DamagedImage& image : damaged_images(options(), parts, part, threads)) {
          found.push_back(image.file);
          expect_holds(image.text, image.file);
        }
      }
      EXPECT_EQ(found, expected) << parts << " parts";
    }
  }

  // A file is read only when a batch needs it. The loader then returns an error that names the file instead of the
  // batch.
  const DataSplit all = open_data(options());
  EXPECT_EQ(all.train->size(), 10);
  expect_holds(error_of<DataError>([&] { (void)loaded(*all.train, 1, 2); }), ".png': ");
  expect_holds(error_of<DataError>([&] { (void)read(*all.train, 1); }), "train/a/1.png': damaged or unknown PNG data");
  expect_holds(error_of<DataError>([&] { (void)read(*all.train, 8); }), "train/b/3.png': is no JPEG or PNG file");
  expect_holds(error_of<DataError>([&] { (void)read(*all.test, 2); }), "val/b/y.jpg': damaged or unknown JPEG data");

  DataOptions sound = options();
  sound.folder.left_out = {expected[2], expected[0], expected[1]};
  const DataSplit rest = open_data(sound);
  EXPECT_EQ(rest.train->size(), 8);
  EXPECT_EQ(rest.test->size(), 2);
  EXPECT_EQ(loaded(*rest.train, 2, 2).size(), 24U);
  EXPECT_NE(rest.train->fingerprint(), all.train->fingerprint());
  sound.folder.left_out = {"val/a/x.png", "val/b/x.png", "val/b/y.jpg"};
  expect_holds(refused(sound), "nothing remains for the test");
  sound.folder.left_out.clear();
  for (int i = 0; i < 5; ++i) {
    sound.folder.left_out.push_back(concat("train/b/", i, ".png"));
  }
  expect_holds(refused(sound), "nothing remains of class 1");

  // A FIFO is no regular file. It must count as damaged, and no call may wait until a program writes to the FIFO.
  ASSERT_EQ(::mkfifo((folder_ / "train/a/5.png").c_str(), 0600), 0);
  ASSERT_EQ(damaged_images(options(), 1, 0, 2).size(), 4U);
  {
    const testing::NoThreads none;
    EXPECT_EQ(damaged_images(options(), 1, 0, 3).size(), 4U) << "one thread does all";
  }
  expect_holds(damaged_images(options(), 1, 0, 2)[1].text, "train/a/5.png: is not a regular file");
  DataOptions wrong = options();
  wrong.spec = "synthetic";
  expect_holds(error_of<UsageError>([&] { (void)damaged_images(wrong, 1, 0, 1); }), "expected folder:DIR");
}

TEST_F(ImageFolder, WhatIsNoSuchFolderIsNamed) {
  expect_holds(refused({.spec = "folder:" + (folder_ / "none")}), "none': is no folder");
  expect_holds(usage(options()), "has no folder train, expected train and one of val and test in it, or a fraction");
  fs::create_directories(folder_ / "train");
  expect_holds(usage(options()), "has no folder val or test");
  fs::create_directories(folder_ / "val");
  expect_holds(refused(options()), "train': no classes, expected a folder of images for each");
  put_grey("train/beside.png", 1);
  expect_holds(refused(options()), "train': no classes");
  put_two_classes();
  EXPECT_EQ(open_data(options()).train->classes(), 2);

  DataOptions both = options();
  both.folder.val_fraction = 0.5;
  expect_holds(usage(both), "has a folder val");
  fs::create_directories(folder_ / "train/empty");
  expect_holds(refused(options()), "train/empty': a class without images, expected files *.jpg, *.jpeg or *.png");
  put_grey("train/empty/1.png", 1);
  expect_holds(refused(options()), "class 'empty' is in train and not in val");
  fs::remove_all(folder_ / "train/empty");
  put_grey("val/\xff/1.png", 1);
  expect_holds(refused(options()), "class '\\xff' is in val and not in train");
  fs::remove_all(folder_ / "val/\xff");
  put_grey("val/aa/1.png", 1);
  expect_holds(refused(options()), "class 'aa' is in val and not in train");
  fs::remove_all(folder_ / "val/aa");
  for (const std::int64_t size : {0, -1, 4097}) {
    expect_holds(usage(options(size)), concat("image size is ", size, ", expected 1 to 4096"));
  }
  DataOptions small = options(20);
  small.folder.resize = 19;
  expect_holds(usage(small), "resize is 19, expected at least the image size, 20");
}

TEST_F(ImageFolder, LinksAreFollowedButNotInCircles) {
  put_two_classes();
  put_grey("elsewhere/1.png", 77);
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "train/c");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "val/c");
  EXPECT_EQ(open_data(options()).train->classes(), 3);
  fs::create_symlink(folder_ / "elsewhere/1.png", folder_ / "train/c/2.png");
  EXPECT_EQ(open_data(options()).train->size(), 6);

  const auto with_link = [&](const std::string& to, const std::string& at) {
    fs::create_directory_symlink(to, folder_ / at);
    const std::string text = refused(options());
    fs::remove(folder_ / at);
    return text;
  };
  for (const std::string& to : {folder_ / "train/a", folder_ / "train", folder_.path(), std::string("/")}) {
    expect_holds(with_link(to, "train/a/up"), "train/a/up': is a link to a folder that it lies in");
  }
  expect_holds(with_link("itself", "train/itself"), "train/itself': ");
  expect_holds(with_link("itself.png", "train/a/itself.png"), "train/a/itself.png': ");
  expect_holds(with_link("nowhere", "train/a/nowhere.png"), "train/a/nowhere.png': is a link to nothing");
  (void)open_data(options());
}

}  // namespace
}  // namespace lockstep::nn

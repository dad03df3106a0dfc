// Pictures that a device finishes (Dataset::deferred()): the same bytes as those that the loader's threads make.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/deferred.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/context.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;
using testing::expect_holds;
using testing::pixels;

using Bytes = std::vector<std::byte>;

constexpr std::int64_t kSide = 12;
constexpr int kClasses = 2;

/// Waves in three channels, so that pixels differ from their neighbours.
testing::Pixels waves(std::int64_t width, std::int64_t height, int seed) {
  return pixels(width, height, 3, [seed](std::int64_t y, std::int64_t x, int c) {
    return static_cast<int>(128 + 60 * std::sin(0.9 * static_cast<double>(x) + c + seed) +
                            60 * std::cos(0.7 * static_cast<double>(y) - c * seed));
  });
}

class Deferred : public ::testing::Test {
 protected:
  /// Pictures of many sizes: smaller than an image, decoded at half their size, turned by EXIF, too large for a row.
  void SetUp() override {
    const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{12, 12}, {7, 30},  {31, 17}, {100, 90}, {1, 1},
                                                                   {40, 12}, {13, 64}, {150, 8}, {26, 23}};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto [width, height] = sizes[i];
      const auto number = static_cast<int>(i);
      const testing::Pixels picture = waves(width, height, number);
      put(concat("train/a/", i, ".png"), testing::png(picture));
      put(concat("train/b/", i, ".jpg"), testing::jpeg(picture, {.exif = testing::exif(1 + number % 8)}));
    }
    put("val/a/0.png", testing::png(waves(20, 20, 1)));
    put("val/b/0.png", testing::png(waves(20, 21, 2)));
  }

  void put(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path(data_ + "/" + name);
    std::filesystem::create_directories(path.parent_path());
    testing::put_file(path.string(), bytes);
  }

  [[nodiscard]] std::unique_ptr<ImageDataset> pictures(bool random_crops = true, const std::string& spec = "") const {
    DataOptions given{.spec = spec.empty() ? "folder:" + data_ : spec, .seed = 7};
    given.folder.image_size = kSide;
    given.folder.random_crops = random_crops;
    return std::move(open_data(given).train);
  }

  testing::TemporaryFolder folder_;
  std::string data_ = folder_ / "data";
};

std::unique_ptr<ImageDataset> synthetic() {
  DataOptions options{.seed = 3};
  options.synthetic = {.train_size = 17, .test_size = 4, .height = kSide, .width = kSide + 3, .classes = kClasses};
  return std::move(open_data(options).train);
}

Bytes bytes_of(const TensorView& view) {
  const auto* begin = static_cast<const std::byte*>(view.data);
  return {begin, begin + view.bytes()};
}

/// What a loader of `set` gives in two epochs and what the context makes of `set`'s deferred samples: the fields by
/// name, batch after batch, with the rows behind a batch's samples.
using Fields = std::vector<std::pair<std::string, Bytes>>;

Fields fields_of(const Dataset& set, Context* finishing, int workers) {
  const Sampler sampler({.size = set.size(), .batch_size = 4, .shuffle = true, .keep_last = true, .seed = 5});
  const std::unique_ptr<DeferredSamples> deferred = finishing != nullptr ? set.deferred(false) : nullptr;
  const Dataset& read = deferred != nullptr ? *deferred : set;
  const auto finisher = deferred != nullptr ? deferred->finisher(*finishing, sampler.capacity()) : nullptr;
  HostMemoryResource memory;
  Loader loader(read, sampler, memory, {.workers = workers});
  Fields all;
  for (std::int64_t i = 0; i < 2 * sampler.batches(); ++i) {
    const Batch& loaded = loader.next();
    const Batch& batch = finisher != nullptr ? finisher->finish(loaded) : loaded;
    if (finishing != nullptr) {
      finishing->synchronize();
    }
    EXPECT_EQ(batch.valid, loaded.valid);
    EXPECT_EQ(batch.epoch, loaded.epoch);
    EXPECT_EQ(batch.global_valid, loaded.global_valid);
    EXPECT_EQ(batch.last_of_epoch, loaded.last_of_epoch);
    for (const FieldView& field : batch.fields) {
      all.emplace_back(concat("batch ", i, ": ", name_of(field.field)), bytes_of(field.view));
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// The first name whose bytes differ; empty: none.
std::string difference(const Fields& a, const Fields& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) {
      return a[i].first == b[i].first ? a[i].first : a[i].first + " and " + b[i].first;
    }
  }
  return a.size() == b.size() ? "" : "the number of fields";
}

void expect_same(const Dataset& set) {
  const Fields expected = fields_of(set, nullptr, 1);
  CpuContext at_once({.threads = 1});
  Stream worker = Stream::host_worker("deferred");
  CpuContext with_threads({.threads = 2, .stream = &worker});
  EXPECT_EQ(difference(fields_of(set, &at_once, 0), expected), "");
  EXPECT_EQ(difference(fields_of(set, &with_threads, 3), expected), "");
  EXPECT_EQ(set.deferred(false)->fingerprint(), set.fingerprint());
}

std::vector<AugmentationOptions> all_options() {
  const CropOptions crop{.area = {0.3, 0.9}};
  const JitterOptions jitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  std::vector<AugmentationOptions> all{
      {.jitter = jitter},
      {.jitter = {.contrast = 0.5}},
      {.erase = 1, .fill = {10, 20, 30}},
      {.mixup = 0.3},
      {.cutmix = 1},
      {.jitter = jitter, .erase = 0.5, .fill = {1, 2, 3}, .mixup = 1, .cutmix = 1},
      {.crop = crop},
      {.crop = crop, .flip = true, .jitter = jitter},
      {.pad = 2, .reflect = true, .flip = true, .alternate = true, .erase = 1},
      {.automatic = AutoAugment::rand, .jitter = jitter, .erase = 1, .mixup = 1},
  };
  for (AugmentationOptions& options : all) {
    options.seed = 11;
  }
  return all;
}

TEST_F(Deferred, PicturesHaveTheBytesThatTheHostMakes) {
  for (const bool random : {true, false}) {
    expect_same(*pictures(random));
  }
}

TEST_F(Deferred, PackedPicturesToo) {
  for (const PackedStore store : {PackedStore::files, PackedStore::pixels}) {
    const PackOptions options{.folder = data_, .out = folder_ / "out.pack", .store = store, .overwrite = true};
    (void)FolderPack(options).write([](const PackProgress&) {});
    expect_same(*pictures(true, "packed:" + options.out));
  }
}

TEST_F(Deferred, EveryAugmentationHasTheBytesThatTheHostMakes) {
  for (const AugmentationOptions& options : all_options()) {
    SCOPED_TRACE(text_of(options));
    expect_same(AugmentedImages(pictures(), options));
    expect_same(AugmentedImages(synthetic(), options));
  }
}

/// The control: the comparison sees another picture.
TEST_F(Deferred, AnotherSeedIsSeen) {
  AugmentationOptions options{.erase = 1, .seed = 1};
  const Fields one = fields_of(AugmentedImages(pictures(), options), nullptr, 1);
  options.seed = 2;
  CpuContext context({.threads = 1});
  EXPECT_EQ(difference(fields_of(AugmentedImages(pictures(), options), &context, 1), one), "batch 0: images");
}

TEST_F(Deferred, TheHostHasNoNvJpeg) {
  CpuContext context({.threads = 1});
  const auto set = pictures();
  const auto deferred = set->deferred(true);
  expect_holds(error_of<UnsupportedError>([&] { (void)deferred->finisher(context, 4); }), "cpu");
}

TEST(DeferredSets, NumbersLeaveNothingToADevice) {
  std::vector<float> values(6);
  const MemoryDataset set("numbers", {{StateField::values, TensorView(std::span<float>{values}, {3, 2})}});
  EXPECT_EQ(set.deferred(false), nullptr);
}

TEST(DeferredSets, ALargerBatchIsRefused) {
  const auto set = synthetic();
  const auto deferred = set->deferred(false);
  CpuContext context({.threads = 1});
  const auto finisher = deferred->finisher(context, 3);
  const Sampler sampler({.size = set->size(), .batch_size = 4});
  HostMemoryResource memory;
  Loader loader(*deferred, sampler, memory);
  expect_holds(error_of<UsageError>([&] { (void)finisher->finish(loader.next()); }), "a batch of 4 samples, expected at most 3");
}

}  // namespace
}  // namespace lockstep::nn

#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/device_preprocessing.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"

/// Makes data sets of encoded images, and collects all fields that a loader returns for them. The loader's threads or a
/// device finish the images.
namespace lockstep::nn {

inline constexpr std::int64_t kSide = 12;

/// Returns an image of waves in three channels, so that pixels differ from their neighbours.
inline testing::Pixels waves(std::int64_t width, std::int64_t height, int seed) {
  return testing::pixels(width, height, 3, [seed](std::int64_t y, std::int64_t x, int c) {
    return static_cast<int>(128 + 60 * std::sin(0.9 * static_cast<double>(x) + c + seed) +
                            60 * std::cos(0.7 * static_cast<double>(y) - c * seed));
  });
}

class PictureFolder : public ::testing::Test {
 protected:
  /// Writes images of many sizes. Some are smaller than the output. Some are decoded at half their size or turned by
  /// EXIF. Some have too many bytes for their row of the batch.
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

/// Returns a data set in memory whose images are not square.
inline std::unique_ptr<ImageDataset> synthetic() {
  const SyntheticOptions sizes{.train_size = 17, .test_size = 4, .height = kSide, .width = kSide + 3, .classes = 2};
  return std::move(open_data({.seed = 3, .synthetic = sizes}).train);
}

/// The fields, by name, of all batches in two epochs. They include the unused rows after a batch's samples.
using Fields = std::vector<std::pair<std::string, std::vector<std::byte>>>;

/// Selects what finishes a loader's batches: `context`, or the loader's threads if `context` is null.
struct Finishing {
  Context* context = nullptr;
  bool keep_jpeg = false;
  MemoryResource* memory = nullptr;  ///< memory of the loader; null: the host's memory
  int workers = 1;
};

inline Fields fields_of(const Dataset& set, const Finishing& by = {}) {
  const Sampler sampler({.size = set.size(), .batch_size = 4, .shuffle = true, .keep_last = true, .seed = 5});
  const std::unique_ptr<DevicePreprocessing> deferred =
      by.context != nullptr ? set.device_preprocessing(by.keep_jpeg) : nullptr;
  HostMemoryResource host;
  CpuContext plain({.threads = 1});
  Context& context = by.context != nullptr ? *by.context : plain;
  Loader loader(deferred != nullptr ? *deferred : set, sampler, by.memory != nullptr ? *by.memory : host,
                {.workers = by.workers});
  const auto preprocessor = deferred != nullptr ? deferred->preprocessor(context, sampler.capacity()) : nullptr;
  Fields all;
  for (std::int64_t i = 0; i < 2 * sampler.batches(); ++i) {
    const Batch& loaded = loader.next();
    const Batch& batch = preprocessor != nullptr ? preprocessor->finish(loaded) : loaded;
    EXPECT_EQ(batch.valid, loaded.valid);
    EXPECT_EQ(batch.epoch, loaded.epoch);
    EXPECT_EQ(batch.global_valid, loaded.global_valid);
    EXPECT_EQ(batch.last_of_epoch, loaded.last_of_epoch);
    for (const FieldView& field : batch.fields) {
      std::vector<std::byte> bytes(field.view.bytes());
      copy_now(field.field == StateField::images ? context : plain, field.view,
               TensorView(bytes.data(), field.view.dtype, Device::cpu(), field.view.shape));
      all.emplace_back(concat("batch ", i, ": ", name_of(field.field)), std::move(bytes));
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// Returns the name of the first field whose bytes differ, or "" if all are equal.
inline std::string difference(const Fields& a, const Fields& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) {
      return a[i].first == b[i].first ? a[i].first : a[i].first + " and " + b[i].first;
    }
  }
  return a.size() == b.size() ? "" : "the number of fields";
}

inline std::vector<AugmentationOptions> all_options() {
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

}  // namespace lockstep::nn

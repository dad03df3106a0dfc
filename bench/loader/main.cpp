// bench_loader: measures the images per second that one thread of a loader reads and augments.
//
//   loader/memory/32/none          a copy out of memory, without augmentation
//   loader/memory/32/crop_flip     images are padded by an eighth of the side, cropped and mirrored
//   loader/memory/32/OPERATION     one operation: resized_part, trivial (TrivialAugment), rand (RandAugment), jitter,
//                                  erase, mixup or cutmix
//   loader/memory/32/all           all operations except resized_part, trivial and rand
//   loader/folder/224/middle       a JPEG file of 500 x 375 pixels: decoded, resized, cropped to the middle
//   loader/folder/224/part         a random part of the picture, decoded, resized and mirrored
//   loader/folder/224/jitter, all  a random part of the picture, then these operations
//   loader/folder/224/device       the loader's work when a device resizes (train_resnet --pictures device)
//   loader/folder/224/nvjpeg       the loader's work when a device decodes and resizes
//   loader/packed/files/224/...    JPEG files that lockstep-pack has packed into one file
//   loader/packed/pixels/224/...   decoded pixels that lockstep-pack has packed into one file
//
// In a training run, each of a rank's --workers threads does this work. A call reads one image. The files stay in the
// system's page cache. Use --benchmark_repetitions=5 for results to publish.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/device_preprocessing.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "bench/support/runner.hpp"
#if LOCKSTEP_HAS_IMAGES
#include "tests/support/image_files.hpp"
#include "tests/support/temporary_folder.hpp"
#endif

namespace {

using namespace lockstep;
using bench::Case;
using bench::Timed;

/// Reads the samples of epoch 0 one after the other, then the samples of epoch 1, and so on.
class Reader {
 public:
  Reader(std::unique_ptr<nn::Dataset> set, nn::PicturesOn where)
      : set_(std::move(set)),
        preprocessing_(where == nn::PicturesOn::host ? nullptr
                                                     : set_->device_preprocessing(where == nn::PicturesOn::nvjpeg)),
        read_set_(preprocessing_ != nullptr ? *preprocessing_ : *set_) {
    for (const nn::SampleField& field : read_set_.fields()) {
      memory_.emplace_back(field.bytes());
    }
    out_.assign(memory_.begin(), memory_.end());
  }
  void next() {
    read_set_.read_sample_in(read_ / set_->size(), read_ % set_->size(), out_);
    ++read_;
  }

 private:
  std::unique_ptr<nn::Dataset> set_;
  std::unique_ptr<nn::DevicePreprocessing> preprocessing_;
  const nn::Dataset& read_set_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> out_;
  std::int64_t read_ = 0;
};

Timed timed(std::unique_ptr<nn::Dataset> set, nn::PicturesOn where = nn::PicturesOn::host) {
  const auto reader = std::make_shared<Reader>(std::move(set), where);
  Timed timed;
  timed.work.start = [reader] { reader->next(); };
  timed.work.start();  // warms up: the first call allocates
  timed.sample_seconds = 1e-4;
  timed.per_call = {{"images_per_second", 1}};
  return timed;
}

struct Named {
  std::string name;
  nn::AugmentationOptions options;
};

std::vector<Named> steps(std::int64_t side) {
  const nn::JitterOptions jitter{0.4, 0.4, 0.4, 0.1};
  return {{"none", {}},
          {"crop_flip", {.pad = side / 8, .flip = true}},
          {"resized_part", {.crop = nn::CropOptions{}}},
          {"trivial", {.automatic = nn::AutoAugment::trivial}},
          {"rand", {.automatic = nn::AutoAugment::rand}},
          {"jitter", {.jitter = jitter}},
          {"erase", {.erase = 1}},
          {"mixup", {.mixup = 1}},
          {"cutmix", {.cutmix = 1}},
          {"all", {.pad = side / 8, .flip = true, .jitter = jitter, .erase = 0.25, .mixup = 0.2, .cutmix = 1}}};
}

void add_memory(std::vector<Case>& all, std::int64_t side) {
  for (const Named& step : steps(side)) {
    all.push_back({concat("loader/memory/", side, "/", step.name), [side, step] {
                     constexpr std::int64_t kImages = 64;
                     Random random(1, RandomUse::test);
                     std::vector<std::uint8_t> pixels(static_cast<std::size_t>(kImages * side * side * 3));
                     for (std::uint8_t& value : pixels) {
                       value = static_cast<std::uint8_t>(random.bits());
                     }
                     auto images = std::make_unique<nn::detail::StoredImages>(
                         nn::DatasetInfo{"random images", kImages, side, side, 10}, 3, std::move(pixels),
                         std::vector<std::uint8_t>(kImages));
                     return timed(std::make_unique<nn::AugmentedImages>(std::move(images), step.options));
                   }});
  }
}

/// Adds a case of the synthetic images that a training run uses without --data, with as many classes as ImageNet.
void add_synthetic(std::vector<Case>& all, std::int64_t side) {
  all.push_back({concat("loader/synthetic/", side), [side] {
                   return timed(nn::open_data({.synthetic = {.height = side, .width = side, .classes = 1000}}).train);
                 }});
}

#if LOCKSTEP_HAS_IMAGES
/// Writes JPEG files that cost a decoder as much as photographs: smooth, with texture, colours at half the resolution.
void put_photos(const std::string& folder) {
  constexpr int kPhotos = 16;
  Random random(2, RandomUse::test);
  for (int i = 0; i < kPhotos; ++i) {
    const auto value = [&](std::int64_t y, std::int64_t x, int c) {
      const double waves = 50 * std::sin(0.02 * static_cast<double>(x) + c + i) +
                           50 * std::cos(0.03 * static_cast<double>(y) - c) +
                           20 * std::sin(0.7 * static_cast<double>(x + y));
      return static_cast<int>(128 + waves) + static_cast<int>(random.below(8));
    };
    const std::string name = concat(folder, i == 0 ? "/val" : "/train", "/c/", i, ".jpg");
    std::filesystem::create_directories(std::filesystem::path(name).parent_path());
    write_file(name, testing::jpeg(testing::pixels(500, 375, 3, value), {.quality = 90, .half_colours = true}));
  }
}

/// Adds cases that read images from files. `photos` is the folder of the files, `spec` the value of --data for this
/// folder, and `kind` a part of the cases' names.
void add_pictures(std::vector<Case>& all, const std::shared_ptr<testing::TemporaryFolder>& photos,
                  const std::string& kind, const std::string& spec) {
  for (const Named& step : steps(0)) {
    const bool whole = step.name == "none";
    if (!whole && step.name != "crop_flip" && step.name != "jitter" && step.name != "all") {
      continue;
    }
    all.push_back({concat("loader/", kind, "/224/", whole ? "middle" : (step.name == "crop_flip" ? "part" : step.name)),
                   [photos, spec, step, whole] {
                     nn::DataOptions options{.spec = spec};
                     options.folder.random_crops = !whole;
                     nn::AugmentationOptions then = step.options;
                     then.flip = false;  // the decoder mirrors
                     return timed(std::make_unique<nn::AugmentedImages>(nn::open_data(options).train, then));
                   }});
  }
}

/// Adds a case of the loader's work when a device resizes the images (`where` is device), or also decodes the images
/// (`where` is nvjpeg).
void add_deferred(std::vector<Case>& all, const std::shared_ptr<testing::TemporaryFolder>& photos,
                  const std::string& kind, const std::string& spec, nn::PicturesOn where) {
  all.push_back({concat("loader/", kind, "/224/", name_of(where)),
                 [photos, spec, where] { return timed(nn::open_data({.spec = spec}).train, where); }});
}

void add_packed(std::vector<Case>& all, const std::shared_ptr<testing::TemporaryFolder>& photos,
                const std::string& folder, nn::PackedStore store) {
  const std::string file = *photos / nn::name_of(store);
  nn::FolderPack({.folder = folder, .out = file, .store = store}).write([](const nn::PackProgress&) {});
  const std::string kind = concat("packed/", nn::name_of(store));
  add_pictures(all, photos, kind, "packed:" + file);
  add_deferred(all, photos, kind, "packed:" + file, nn::PicturesOn::device);
  if (store == nn::PackedStore::files) {
    add_deferred(all, photos, kind, "packed:" + file, nn::PicturesOn::nvjpeg);
  }
}
#endif

int run(comm::Session& session, const DeviceRequest&, const bench::RunOptions& options) {
  std::vector<Case> all;
  add_memory(all, 32);
  add_memory(all, 224);
  add_synthetic(all, 32);
  add_synthetic(all, 224);
  bench::RunContext context{{"threads", "1"}};
#if LOCKSTEP_HAS_IMAGES
  const auto photos = std::make_shared<testing::TemporaryFolder>();
  const std::string folder = *photos / "photos";
  put_photos(folder);
  add_pictures(all, photos, "folder", "folder:" + folder);
  add_deferred(all, photos, "folder", "folder:" + folder, nn::PicturesOn::device);
  add_deferred(all, photos, "folder", "folder:" + folder, nn::PicturesOn::nvjpeg);
  add_packed(all, photos, folder, nn::PackedStore::files);
  add_packed(all, photos, folder, nn::PackedStore::pixels);
#else
  context.emplace_back("folder", "left out: this build has no libjpeg-turbo and libpng");
#endif
  return bench::run_cases(session, options, context, all);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(
      argc, argv,
      {.name = "bench_loader",
       .description = "Times one thread of a loader: images a second that the thread reads and augments.",
       .run = run});
}

// Tests that images which a device finishes (Dataset::device_preprocessing()) have the same bytes as images that the
// loader's threads finish.
#include <optional>
#include <span>

#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/nn/data/finished_pictures.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

using Deferred = PictureFolder;

void expect_same(const Dataset& set) {
  const Fields expected = fields_of(set);
  CpuContext at_once({.threads = 1});
  Stream worker = Stream::host_worker("deferred");
  CpuContext with_threads({.threads = 2, .stream = &worker});
  EXPECT_EQ(difference(fields_of(set, {.context = &at_once, .workers = 0}), expected), "");
  EXPECT_EQ(difference(fields_of(set, {.context = &with_threads, .workers = 3}), expected), "");
  EXPECT_EQ(set.device_preprocessing(false)->fingerprint(), set.fingerprint());
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

/// The control: the comparison finds a difference when the seed differs.
TEST_F(Deferred, AnotherSeedIsSeen) {
  AugmentationOptions options{.erase = 1, .seed = 1};
  const Fields one = fields_of(AugmentedImages(pictures(), options));
  options.seed = 2;
  CpuContext context({.threads = 1});
  EXPECT_EQ(difference(fields_of(AugmentedImages(pictures(), options), {.context = &context}), one), "batch 0: images");
}

TEST_F(Deferred, TheHostHasNoNvJpeg) {
  CpuContext context({.threads = 1});
  const auto set = pictures();
  const auto deferred = set->device_preprocessing(true);
  expect_holds(error_of<UnsupportedError>([&] { (void)deferred->preprocessor(context, 4); }), "cpu");
}

TEST(DeferredSets, NumbersLeaveNothingToADevice) {
  std::vector<float> values(6);
  const MemoryDataset set("numbers", {{StateField::values, TensorView(std::span<float>{values}, {3, 2})}});
  EXPECT_EQ(set.device_preprocessing(false), nullptr);
}

/// A data set whose read_part() returns the PicturePart that a test chose.
class Claims final : public ImageDataset {
 public:
  explicit Claims(const PicturePart& part) : ImageDataset({"claims", 4, 2, 3, 2}), part_(part) {}
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t, std::span<std::uint8_t> image) const override { std::fill(image.begin(), image.end(), 7); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }
  [[nodiscard]] PicturePart read_part(std::optional<std::int64_t>, std::int64_t, bool,
                                      std::span<std::uint8_t>) const override {
    return part_;
  }

 private:
  PicturePart part_;
};

/// read_part() of a user's data set states how many bytes the loader copies and how many nvJPEG decodes. Numbers that
/// do not fit into the image's row of the batch must be refused.
TEST(DeferredSets, PartsThatDoNotFitAreRefused) {
  const auto refusal = [](const PicturePart& part, bool keep_jpeg) {
    const Claims set(part);
    const auto deferred = set.device_preprocessing(keep_jpeg);
    const Sampler sampler({.size = 4, .batch_size = 4});
    HostMemoryResource memory;
    Loader loader(*deferred, sampler, memory);
    return error_of<UsageError>([&] { (void)loader.next(); });
  };
  expect_holds(refusal({.width = 4, .height = 2}, false), "claims: sample 0: a part of 24 bytes, expected at most 18");
  expect_holds(refusal({.width = 0, .height = 2}, false), "a part of 0 x 2 pixels, expected sides of 1 to 134217728");
  expect_holds(refusal({.width = 1LL << 40, .height = 1LL << 40}, false), "expected sides of 1 to");
  expect_holds(refusal({.width = 3, .height = 2, .file_bytes = 5}, false), "a file of 5 bytes, expected at most 0");
  expect_holds(refusal({.width = 3, .height = 2, .file_bytes = -5}, true), "a file of -5 bytes, expected at most 18");
  expect_holds(refusal({.width = 3, .height = 2, .file_bytes = 19}, true), "a file of 19 bytes, expected at most 18");
  expect_holds(refusal({.width = 13, .height = 1, .file_bytes = 9}, true), "a part of 39 bytes, expected at most 36");
}

TEST(DeferredSets, ALargerBatchIsRefused) {
  const auto set = synthetic();
  const auto deferred = set->device_preprocessing(false);
  CpuContext context({.threads = 1});
  const auto preprocessor = deferred->preprocessor(context, 3);
  const Sampler sampler({.size = set->size(), .batch_size = 4});
  HostMemoryResource memory;
  Loader loader(*deferred, sampler, memory);
  expect_holds(error_of<UsageError>([&] { (void)preprocessor->finish(loader.next()); }),
               "a batch of 4 samples, expected at most 3");
}

}  // namespace
}  // namespace lockstep::nn

// Pictures that a device finishes (Dataset::deferred()): the same bytes as those that the loader's threads make.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/context.hpp>

#include "tests/nn/data/finished_pictures.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;
using testing::expect_holds;

using Deferred = PictureFolder;

void expect_same(const Dataset& set) {
  const Fields expected = fields_of(set);
  CpuContext at_once({.threads = 1});
  Stream worker = Stream::host_worker("deferred");
  CpuContext with_threads({.threads = 2, .stream = &worker});
  EXPECT_EQ(difference(fields_of(set, {.context = &at_once, .workers = 0}), expected), "");
  EXPECT_EQ(difference(fields_of(set, {.context = &with_threads, .workers = 3}), expected), "");
  EXPECT_EQ(set.deferred(false)->fingerprint(), set.fingerprint());
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
  const Fields one = fields_of(AugmentedImages(pictures(), options));
  options.seed = 2;
  CpuContext context({.threads = 1});
  EXPECT_EQ(difference(fields_of(AugmentedImages(pictures(), options), {.context = &context}), one), "batch 0: images");
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
  expect_holds(error_of<UsageError>([&] { (void)finisher->finish(loader.next()); }),
               "a batch of 4 samples, expected at most 3");
}

}  // namespace
}  // namespace lockstep::nn

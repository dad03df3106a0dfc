// Pictures that a GPU finishes, without one: the stand-ins for the CUDA runtime and nvJPEG, the emulated kernels.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/context.hpp>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"
#include "tests/nn/data/finished_pictures.hpp"
#include "tests/support/error_of.hpp"

#if LOCKSTEP_HAS_NVJPEG_STANDIN
#include "nvjpeg_control.hpp"
#endif

namespace lockstep::nn {
namespace {

using Texts = std::vector<std::string>;

class CudaPictures : public PictureFolder {
 protected:
  void TearDown() override {
    EXPECT_EQ(standin::violations(), Texts{});
    standin::reset();
  }
  /// On a new machine, whose order of the work the seed decides.
  static Fields on_gpu(const Dataset& set, bool keep_jpeg, std::uint64_t seed) {
    EXPECT_EQ(standin::violations(), Texts{});
    standin::reset({.seed = seed});
    emulation::set_schedule(emulation::Schedule::random(seed));
    CudaContext context(Device::cuda(0));
    PinnedMemoryResource memory(context.device());
    return fields_of(set, {.context = &context, .keep_jpeg = keep_jpeg, .memory = &memory});
  }
};

TEST_F(CudaPictures, HaveTheBytesThatTheHostMakes) {
  std::uint64_t seed = 0;
  for (const AugmentationOptions& options : all_options()) {
    SCOPED_TRACE(text_of(options));
    const AugmentedImages set(pictures(), options);
    EXPECT_EQ(difference(on_gpu(set, false, ++seed), fields_of(set)), "");
  }
  const auto plain = pictures(false);
  EXPECT_EQ(difference(on_gpu(*plain, false, ++seed), fields_of(*plain)), "");
  const auto memory = synthetic();
  EXPECT_EQ(difference(on_gpu(*memory, false, ++seed), fields_of(*memory)), "");
}

#if LOCKSTEP_HAS_NVJPEG_STANDIN
/// The stand-in decodes as libjpeg does, so the bytes are the host's where this does not decode at a smaller size.
TEST_F(CudaPictures, JpegFilesAreDecodedOnTheGpu) {
  ASSERT_TRUE(std::filesystem::remove(data_ + "/train/b/3.jpg"));  // 100 x 90
  put("train/b/cmyk.jpg",
      testing::jpeg(testing::pixels(12, 14, 4, [](auto y, auto x, int c) { return 9 * x + y + c; })));
  put("train/b/grey.jpg", testing::jpeg(testing::pixels(15, 14, 1, [](auto y, auto x, int) { return 9 * x + y; })));
  nvjpeg_standin::reset();
  std::uint64_t seed = 0;
  for (const AugmentationOptions& options : {AugmentationOptions{}, {.mixup = 1}, {.erase = 1, .cutmix = 1}}) {
    SCOPED_TRACE(text_of(options));
    const AugmentedImages set(pictures(), options);
    EXPECT_EQ(difference(on_gpu(set, true, ++seed), fields_of(set)), "");
  }
  int decoded = 0;
  for (const std::string& call : nvjpeg_standin::calls()) {
    decoded += call.starts_with("nvjpegDecodeBatched ") ? 1 : 0;
  }
  EXPECT_GT(decoded, 20);
  EXPECT_EQ(nvjpeg_standin::leaks(), Texts{});
}

TEST_F(CudaPictures, ADamagedFileIsNamed) {
  std::string file = testing::jpeg(waves(20, 16, 1));
  file.resize(file.size() - 100);
  put("train/a/broken.jpg", file);
  for (const double mixup : {0.0, 1.0}) {
    const AugmentedImages set(pictures(), {.mixup = mixup});
    testing::expect_holds(testing::error_of<DataError>([&] { (void)on_gpu(set, true, 1); }), "'train/a/broken.jpg'");
  }
}
#endif

}  // namespace
}  // namespace lockstep::nn

// Tests on the host the code with which a GPU finishes images: stand-ins replace the CUDA runtime and nvJPEG, and
// kernels are emulated.

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/nn/data/finished_pictures.hpp"

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
  /// Resets the stand-in of the CUDA runtime. The emulated GPU then finishes all batches of `set`. Returns the fields
  /// of these batches. `seed` decides the order in which asynchronous work is executed.
  static Fields on_gpu(const Dataset& set, bool keep_jpeg, std::uint64_t seed) {
    EXPECT_EQ(standin::violations(), Texts{});
    standin::reset({.seed = seed});
    emulation::set_schedule(emulation::Schedule::random(seed));
    CudaContext context(Device::cuda(0));
    PinnedMemoryResource memory(context.device());
    return fields_of(set, {.context = &context, .keep_jpeg = keep_jpeg, .memory = &memory});
  }
};

Model mlp() {
  ModelBuilder builder = ModelBuilder::for_images("mlp", {kSide, kSide, 3});
  builder.linear("fc", builder.input(), 2);
  return builder.build();
}

/// Resets the stand-in of the CUDA runtime with `seed`, starts a trainer of one rank on it and calls `body` with the
/// trainer. Returns the text of the exception, or "".
std::string with_trainer(const Dataset& train, const Dataset& test, PicturesOn pictures, std::uint64_t seed,
                         const std::function<void(Trainer&)>& body) {
  standin::reset({.seed = seed});
  emulation::set_schedule(emulation::Schedule::random(seed));
  CudaContext context(Device::cuda(0));
  Stream communication = Stream::cuda(Device::cuda(0), -1);
  TrainerOptions options{.global_batch = 4, .schedule = {.base = 0.1, .total_steps = 8}, .pictures = pictures};
  options.step.plan.two_labels = true;
  // The plan of a CPU lists the calls that have choices; lockstep's own kernels are chosen for all of them, because
  // cuBLASLt and cuDNN are not tested here.
  CpuContext host;
  options.step.plan.choices = Plan(host, mlp(), Mode::train, 4, options.step.plan).choices();
  for (auto& [call, choice] : options.step.plan.choices) {
    choice = "cuda";
  }
  const auto run = [&](comm::Communicator& grad, comm::Communicator& control) {
    Trainer trainer(context, {grad, control, communication}, mlp(), {train, test}, options);
    trainer.start();
    body(trainer);
  };
  return comm::run_ranks(1, run).front();
}

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
/// The stand-in for nvJPEG decodes with libjpeg, so the finished images must have the host's bytes. The loader's
/// threads decode the files that nvJPEG does not decode: large JPEG files, CMYK and PNG.
TEST_F(CudaPictures, JpegFilesAreDecodedOnTheGpu) {
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

/// Training must give the same parameters for every order of asynchronous work, even while later batches are being
/// finished.
TEST_F(CudaPictures, TrainToTheNumbersOfTheHost) {
  const AugmentedImages set(pictures(), {.jitter = {.contrast = 0.4}, .erase = 0.5, .mixup = 1, .cutmix = 1});
  const auto test = pictures(false);
  const auto trained = [&](PicturesOn where, std::uint64_t seed) {
    std::vector<std::byte> bytes;
    EXPECT_EQ(with_trainer(set, *test, where, seed,
                           [&](Trainer& trainer) {
                             for (int i = 0; i < 7; ++i) {
                               trainer.step();
                             }
                             const TensorView values = trainer.parameters().values();
                             bytes.resize(values.bytes());
                             copy_now(trainer.context(), values,
                                      TensorView(bytes.data(), values.dtype, Device::cpu(), values.shape));
                           }),
              "");
    EXPECT_EQ(standin::violations(), Texts{}) << name_of(where) << ", seed " << seed;
    return bytes;
  };
  const std::vector<std::byte> expected = trained(PicturesOn::host, 1);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    for (const PicturesOn where : {PicturesOn::device, PicturesOn::nvjpeg}) {
      EXPECT_EQ(trained(where, seed), expected) << name_of(where) << ", seed " << seed;
    }
  }
  EXPECT_NE(option_texts({}, {set, *test}), option_texts({.pictures = PicturesOn::nvjpeg}, {set, *test}));
  EXPECT_EQ(option_texts({}, {set, *test}), option_texts({.pictures = PicturesOn::device}, {set, *test}));
}

/// Returns a JPEG file whose header is valid and whose data is broken.
std::string broken_jpeg() {
  std::string file = testing::jpeg(waves(20, 16, 1));
  file.resize(file.size() - 100);
  return file;
}

TEST_F(CudaPictures, AStepOfADamagedFileEndsAndMayBeTriedAgain) {
  put("train/a/broken.jpg", broken_jpeg());
  const AugmentedImages set(pictures(), {.mixup = 1});
  const auto test = pictures(false);
  const std::string failure = with_trainer(set, *test, PicturesOn::nvjpeg, 1, [&](Trainer& trainer) {
    std::string first;
    while (first.empty()) {
      try {
        trainer.step();
      } catch (const DataError& error) {
        first = error.what();
      }
    }
    testing::expect_holds(first, "'train/a/broken.jpg'");
    const Position at = trainer.position();
    EXPECT_EQ(testing::error_of<DataError>([&] { trainer.step(); }), first);
    EXPECT_EQ(trainer.position().step, at.step);
  });
  EXPECT_EQ(failure, "");
}

TEST_F(CudaPictures, ADamagedFileIsNamed) {
  put("train/a/broken.jpg", broken_jpeg());
  for (const double mixup : {0.0, 1.0}) {
    const AugmentedImages set(pictures(), {.mixup = mixup});
    testing::expect_holds(testing::error_of<DataError>([&] { (void)on_gpu(set, true, 1); }), "'train/a/broken.jpg'");
  }
}
#endif

}  // namespace
}  // namespace lockstep::nn

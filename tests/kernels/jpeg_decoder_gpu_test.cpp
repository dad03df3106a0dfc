// Tests of the real nvJPEG, which needs a GPU. All other tests use the stand-in in tests/virtual_gpu/nvjpeg.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/image_files.hpp"
#include "tests/virtual_gpu/nvjpeg/plain_jpeg.hpp"

namespace lockstep::testing {
namespace {

using ops::JpegDecoder;

class JpegDecoderGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) {
      GTEST_SKIP() << "needs a CUDA device, this machine has none";
    }
    if (const std::string problem = ops::jpeg_decoder_problem(Device::cuda(0)); !problem.empty()) {
      GTEST_SKIP() << problem;
    }
  }

  [[nodiscard]] static std::string file(std::int64_t width, std::int64_t height, int channels,
                                        const JpegOptions& options = {}) {
    return jpeg(testing::pixels(width, height, channels,
                                [](std::int64_t y, std::int64_t x, int c) {
                                  return static_cast<int>(
                                      128 + 100 * std::sin(0.05 * static_cast<double>((c + 1) * x + 2 * y)));
                                }),
                options);
  }
};

/// The pixels must equal those of libjpeg up to rounding. The images are smooth, so roundings differ little. Tests
/// batches smaller and larger than those that nvJPEG decodes on the GPU at once.
TEST_F(JpegDecoderGpu, PixelsAreThoseOfLibjpegButForRoundings) {
  CudaContext context(Device::cuda(0));
  CpuContext host;
  JpegDecoder decoder(context, {.most = 64, .host_threads = 2});
  const std::vector<std::string> kinds{file(97, 61, 3), file(50, 33, 1), file(224, 160, 3, {.half_colours = true}),
                                       file(81, 40, 3, {.half_colours = true, .progressive = true})};
  for (const std::size_t count : {std::size_t{4}, std::size_t{64}, std::size_t{3}}) {
    std::vector<JpegDecoder::File> files;
    std::vector<std::uint8_t> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& text = kinds[i % kinds.size()];
      const std::span<const std::uint8_t> bytes{reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
      const PlainHeader header = read_header(bytes).value();
      const std::vector<std::uint8_t> pixels = decode(bytes).value();
      files.push_back({bytes, header.width, header.height, nullptr});
      expected.insert(expected.end(), pixels.begin(), pixels.end());
    }
    const Tensor pixels = Tensor::empty(context, Shape{static_cast<std::int64_t>(expected.size())}, DType::u8);
    auto* at = static_cast<std::uint8_t*>(pixels.view().data);
    for (JpegDecoder::File& one : files) {
      one.pixels = at;
      at += one.width * one.height * 3;
    }
    decoder.decode(files);
    const Tensor got = Tensor::empty(host, pixels.view().shape, DType::u8);
    copy(context, pixels, got);
    context.synchronize();
    std::int64_t sum = 0;
    const auto* found = static_cast<const std::uint8_t*>(got.view().data);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      sum += std::abs(int{found[i]} - int{expected[i]});
    }
    EXPECT_LT(sum, 2 * std::ssize(expected)) << count;
  }
}

TEST_F(JpegDecoderGpu, ADamagedHeaderIsNamedByItsIndex) {
  CudaContext context(Device::cuda(0));
  JpegDecoder decoder(context, {.most = 2});
  const std::string good = file(16, 16, 3);
  const std::string noise(100, 'x');
  const Tensor pixels = Tensor::empty(context, Shape{2 * 16 * 16 * 3}, DType::u8);
  auto* at = static_cast<std::uint8_t*>(pixels.view().data);
  const auto bytes = [](const std::string& text) {
    return std::span<const std::uint8_t>{reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
  };
  const JpegDecoder::File files[] = {{bytes(good), 16, 16, at}, {bytes(noise), 16, 16, at + 16 * 16 * 3}};
  const std::string text = error_of<DataError>([&] { decoder.decode(files); });
  EXPECT_TRUE(text.starts_with("file 1 of 2: ")) << text;
}

}  // namespace
}  // namespace lockstep::testing

// Tests the JPEG decoder with nvJPEG's stand-in: pixels, order on the stream, memory, and which file an error names.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "control.hpp"
#include "nvjpeg_control.hpp"
#include "plain_jpeg.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/image_files.hpp"

namespace lockstep {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Texts = std::vector<std::string>;
using ops::JpegDecoder;
using testing::error_of;
using testing::expect_error;

constexpr std::uint64_t kSeeds = 20;

Bytes bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

Bytes file_of(std::int64_t width, std::int64_t height, int channels, const testing::JpegOptions& options = {}) {
  return bytes_of(testing::jpeg(
      testing::pixels(width, height, channels,
                      [](std::int64_t y, std::int64_t x, int c) { return 40 * c + 5 * x + 3 * y * (c + 1); }),
      options));
}

/// Returns files of odd sizes: a grey file, files with subsampled colours, a progressive file.
std::vector<Bytes> some_files() {
  return {file_of(17, 13, 3, {.half_colours = true}), file_of(1, 1, 3), file_of(33, 50, 1),
          file_of(64, 64, 3, {.quality = 50}), file_of(31, 8, 3, {.half_colours = true, .progressive = true})};
}

/// Files, and one block of device memory for their pixels, without gaps between the files.
class Batch {
 public:
  Batch(CudaContext& context, std::vector<Bytes> contents) : context_(context), contents_(std::move(contents)) {
    std::int64_t size = 0;
    for (const Bytes& content : contents_) {
      const auto header = testing::read_header(content);
      files_.push_back({content, header ? header->width : 1, header ? header->height : 1, nullptr});
      size += files_.back().width * files_.back().height * 3;
    }
    pixels_ = Tensor::empty(context, Shape{size}, DType::u8);
    auto* at = static_cast<std::uint8_t*>(pixels_.view().data);
    for (JpegDecoder::File& file : files_) {
      file.pixels = at;
      at += file.width * file.height * 3;
    }
  }

  [[nodiscard]] std::vector<JpegDecoder::File>& files() { return files_; }
  /// Enqueues work that overwrites all pixels with 0xA5.
  void spoil() {
    const Tensor other = Tensor::empty(host_, pixels_.view().shape, DType::u8);
    std::fill_n(static_cast<std::uint8_t*>(other.view().data), other.view().shape[0], std::uint8_t{0xA5});
    copy(context_, other, pixels_);
  }
  [[nodiscard]] Bytes pixels() {
    const Tensor host = Tensor::empty(host_, pixels_.view().shape, DType::u8);
    copy(context_, pixels_, host);
    context_.synchronize();
    const auto* begin = static_cast<const std::uint8_t*>(host.view().data);
    return {begin, begin + host.view().shape[0]};
  }
  [[nodiscard]] Bytes expected() const {
    Bytes all;
    for (const Bytes& content : contents_) {
      const Bytes one = testing::decode(content).value();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  CudaContext& context_;
  CpuContext host_;
  std::vector<Bytes> contents_;
  std::vector<JpegDecoder::File> files_;
  Tensor pixels_;
};

class JpegDecoderTest : public ::testing::Test {
 protected:
  void SetUp() override { restart(); }
  void TearDown() override { expect_clean(); }
  static void restart(const standin::Options& options = {}) {
    standin::reset(options);
    nvjpeg_standin::reset();
  }
  static void expect_clean() {
    EXPECT_EQ(standin::violations(), Texts{});
    EXPECT_EQ(standin::leaks(), Texts{});
    EXPECT_EQ(nvjpeg_standin::leaks(), Texts{});
  }
  static int decodings() {
    const Texts calls = nvjpeg_standin::calls();
    return static_cast<int>(std::count_if(
        calls.begin(), calls.end(), [](const std::string& call) { return call.starts_with("nvjpegDecodeBatched"); }));
  }
};

TEST_F(JpegDecoderTest, DecodesInTheOrderOfTheStream) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    restart({.seed = seed});
    {
      CudaContext context(Device::cuda(0));
      JpegDecoder decoder(context, {.most = 5});
      EXPECT_EQ(decoder.most(), 5);
      Batch batch(context, some_files());
      batch.spoil();  // decode() must write after this overwrite
      decoder.decode(batch.files());
      EXPECT_EQ(batch.pixels(), batch.expected()) << seed;
    }
    expect_clean();
  }
}

TEST_F(JpegDecoderTest, BatchesFollowEachOtherWithoutAWaitOfTheCaller) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    restart({.seed = seed});
    {
      CudaContext context(Device::cuda(0));
      JpegDecoder decoder(context, {.most = 5, .host_threads = 3});
      Batch small(context, {file_of(8, 9, 1)});
      Batch all(context, some_files());
      Batch fewer(context, {file_of(5, 60, 3), file_of(70, 70, 3)});
      Batch again(context, some_files());
      decoder.decode(small.files());
      decoder.decode(all.files());
      decoder.decode({});
      decoder.decode(fewer.files());
      decoder.decode(again.files());
      decoder.decode(all.files());
      for (Batch* batch : {&small, &all, &fewer, &again}) {
        EXPECT_EQ(batch->pixels(), batch->expected()) << seed;
      }
      Texts decodings;
      for (const std::string& call : nvjpeg_standin::calls()) {
        if (call.starts_with("nvjpegDecodeBatched")) {
          decodings.push_back(call.substr(std::string("nvjpegDecodeBatched").size()));
        }
      }
      EXPECT_EQ(decodings,
                (Texts{"Initialize 1", " 1", "Initialize 5", " 5", "Initialize 2", " 2", "Initialize 5", " 5", " 5"}));
      const std::vector<cudaStream_t> streams = nvjpeg_standin::streams();
      EXPECT_EQ(streams, std::vector<cudaStream_t>(5, context.stream().cuda_handle()));
      EXPECT_EQ(nvjpeg_standin::threads(), std::vector<int>(4, 3));
      EXPECT_EQ(nvjpeg_standin::formats(), std::vector<nvjpegOutputFormat_t>(4, NVJPEG_OUTPUT_RGBI));
      EXPECT_EQ(nvjpeg_standin::backends(), std::vector<nvjpegBackend_t>{NVJPEG_BACKEND_GPU_HYBRID});
    }
    expect_clean();
  }
}

TEST_F(JpegDecoderTest, WithoutTheWaitForTheLastBatchTheStandinComplains) {
  {
    CudaContext context(Device::cuda(0));
    JpegDecoder decoder(context, {.most = 1});
    Batch batch(context, {file_of(8, 8, 3)});
    decoder.decode(batch.files());
    decoder.decode(batch.files());
    EXPECT_EQ(standin::violations(), Texts{});
    standin::forget_wait(1, "cudaEventSynchronize");
    decoder.decode(batch.files());
    EXPECT_TRUE(standin::wait_forgotten());
    EXPECT_NE(standin::violations(), Texts{});
  }
  restart();
}

TEST_F(JpegDecoderTest, ADamagedFileIsNamedByItsIndex) {
  CudaContext context(Device::cuda(0));
  JpegDecoder decoder(context, {.most = 5});
  std::vector<Bytes> contents = some_files();
  contents[3].resize(contents[3].size() / 2);
  Batch batch(context, contents);
  EXPECT_EQ(error_of<DataError>([&] { decoder.decode(batch.files()); }),
            "file 3 of 5: nvJPEG: NVJPEG_STATUS_BAD_JPEG (damaged); expected a JPEG file that nvJPEG decodes");
  Batch good(context, some_files());
  decoder.decode(good.files());
  EXPECT_EQ(good.pixels(), good.expected());
  Batch one(context, {contents[3]});
  EXPECT_EQ(error_of<DataError>([&] { decoder.decode(one.files()); }),
            "file 0 of 1: nvJPEG: NVJPEG_STATUS_BAD_JPEG (damaged); expected a JPEG file that nvJPEG decodes");
  Batch another(context, {contents[0]});
  decoder.decode(another.files());
  EXPECT_EQ(another.pixels(), another.expected());
}

TEST_F(JpegDecoderTest, AWrongHeaderIsRefusedBeforeAnythingIsDecoded) {
  CudaContext context(Device::cuda(0));
  JpegDecoder decoder(context, {.most = 3});
  const auto refused = [&](const std::vector<JpegDecoder::File>& files) {
    return error_of<DataError>([&] { decoder.decode(files); });
  };
  Batch batch(context, {file_of(8, 9, 3), file_of(20, 10, 3), file_of(4, 4, 1)});
  std::vector<JpegDecoder::File> files = batch.files();
  files[1].width = 19;
  EXPECT_EQ(refused(files), "file 1 of 3: nvJPEG reads 20 x 10 pixels in the header, expected 19 x 10");
  files[1].width = 20;
  files[1].height = 200;
  EXPECT_EQ(refused(files), "file 1 of 3: nvJPEG reads 20 x 10 pixels in the header, expected 20 x 200");
  files = batch.files();
  files[2].bytes = {};
  EXPECT_EQ(
      refused(files),
      "file 2 of 3: nvJPEG cannot read the header: NVJPEG_STATUS_INCOMPLETE_BITSTREAM (cut off); expected a JPEG file");
  const Bytes noise(100, 0x42);
  files[2].bytes = noise;
  EXPECT_EQ(refused(files),
            "file 2 of 3: nvJPEG cannot read the header: NVJPEG_STATUS_BAD_JPEG (damaged); expected a JPEG file");
  const Bytes inks = file_of(4, 4, 4);
  files[2].bytes = inks;
  EXPECT_EQ(refused(files), "file 2 of 3: 4 channels, expected 1 (grey) or 3 (YCbCr)");
  nvjpeg_standin::fail("nvjpegGetImageInfo", NVJPEG_STATUS_JPEG_NOT_SUPPORTED);
  EXPECT_EQ(refused(files),
            "file 0 of 3: nvJPEG cannot read the header: NVJPEG_STATUS_JPEG_NOT_SUPPORTED (a kind of JPEG that nvJPEG "
            "lacks); expected a JPEG file");
  EXPECT_EQ(decodings(), 0);
  decoder.decode(batch.files());
  EXPECT_EQ(batch.pixels(), batch.expected());
}

TEST_F(JpegDecoderTest, WhatNoFileIsToBlameForIsAnotherError) {
  CudaContext context(Device::cuda(0));
  JpegDecoder decoder(context, {.most = 5});
  Batch batch(context, some_files());
  const auto text = [&](const char* function, nvjpegStatus_t status, int n = 1, int times = 1) {
    nvjpeg_standin::fail(function, status, n, times);
    try {
      decoder.decode(batch.files());
    } catch (const DataError& error) {
      return std::string("DataError: ") + error.what();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text("nvjpegDecodeBatched", NVJPEG_STATUS_EXECUTION_FAILED),
            "nvJPEG: 5 files together: NVJPEG_STATUS_EXECUTION_FAILED");
  EXPECT_EQ(decodings(), 2) << "files are not tried alone";
  EXPECT_EQ(text("nvjpegDecodeBatchedInitialize", NVJPEG_STATUS_EXECUTION_FAILED),
            "nvJPEG: 5 files together: NVJPEG_STATUS_EXECUTION_FAILED");
  EXPECT_EQ(text("nvjpegDecodeBatched", NVJPEG_STATUS_INTERNAL_ERROR),
            "nvJPEG: 5 files together: NVJPEG_STATUS_INTERNAL_ERROR");
  EXPECT_EQ(text("nvjpegDecodeBatched", NVJPEG_STATUS_INTERNAL_ERROR, 1, 2),
            "DataError: file 0 of 5: nvJPEG: NVJPEG_STATUS_INTERNAL_ERROR; expected a JPEG file that nvJPEG decodes");
  nvjpeg_standin::fail("nvjpegDecodeBatchedInitialize", NVJPEG_STATUS_EXECUTION_FAILED, 2);
  EXPECT_EQ(text("nvjpegDecodeBatched", NVJPEG_STATUS_BAD_JPEG), "nvJPEG: file 0 of 5: NVJPEG_STATUS_EXECUTION_FAILED");
  EXPECT_EQ(text("nvjpegDecodeBatched", static_cast<nvjpegStatus_t>(15)), "nvJPEG: 5 files together: status 15");
  nvjpeg_standin::fail("nvjpegDecodeBatched", NVJPEG_STATUS_ALLOCATOR_FAILURE);
  EXPECT_EQ(error_of<OutOfMemory>([&] { decoder.decode(batch.files()); }),
            "nvJPEG: 5 files together: NVJPEG_STATUS_ALLOCATOR_FAILURE");
  decoder.decode(batch.files());
  EXPECT_EQ(batch.pixels(), batch.expected());
}

TEST_F(JpegDecoderTest, TheContextGivesAllDeviceMemoryAndGetsItBack) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    restart({.seed = seed});
    {
      CudaPoolResource pool(Device::cuda(0));
      TrackingMemoryResource memory(pool);
      CudaContext context(Device::cuda(0), {.memory = &memory});
      Batch batch(context, some_files());
      const std::size_t before = memory.counts().bytes_in_use;
      {
        JpegDecoder decoder(context, {.most = 5});
        EXPECT_EQ(memory.counts().bytes_in_use, before + 4096);
        decoder.decode(batch.files());
        EXPECT_EQ(memory.counts().bytes_in_use, before + 4096 + batch.expected().size());
        decoder.decode(batch.files());
      }
      EXPECT_EQ(memory.counts().bytes_in_use, before);
      EXPECT_EQ(nvjpeg_standin::allocations(), 3);
      EXPECT_EQ(batch.pixels(), batch.expected()) << "the decoder was gone before";
    }
    expect_clean();
  }
}

TEST_F(JpegDecoderTest, TooLittleMemoryIsSaidAsTheContextSaysIt) {
  CudaPoolResource pool(Device::cuda(0));
  TrackingMemoryResource memory(pool, 20000);
  CudaContext context(Device::cuda(0), {.memory = &memory});
  {
    JpegDecoder decoder(context, {.most = 2});
    Batch large(context, {file_of(60, 50, 3)});
    expect_error<OutOfMemory>([&] { decoder.decode(large.files()); }, {"requested 9000", "limit 20000"});
    Batch small(context, {file_of(8, 8, 3), file_of(9, 3, 3)});
    decoder.decode(small.files());
    EXPECT_EQ(small.pixels(), small.expected());
  }
  const Tensor most = Tensor::empty(context, Shape{18000}, DType::u8);
  const std::string text = error_of<OutOfMemory>([&] { JpegDecoder decoder(context); });
  EXPECT_NE(text.find("requested 4096"), std::string::npos) << text;
}

TEST_F(JpegDecoderTest, TooLittlePinnedMemory) {
  CudaContext context(Device::cuda(0));
  Batch batch(context, {file_of(8, 8, 3)});
  JpegDecoder decoder(context);
  standin::fail_call(1, cudaErrorMemoryAllocation, "cudaMallocHost");
  expect_error<OutOfMemory>([&] { decoder.decode(batch.files()); }, {"page-locked"});
  decoder.decode(batch.files());
  EXPECT_EQ(batch.pixels(), batch.expected());
}

TEST_F(JpegDecoderTest, ALibraryThatDoesNotStart) {
  CudaContext context(Device::cuda(0));
  nvjpeg_standin::fail("nvjpegCreateExV2", NVJPEG_STATUS_ARCH_MISMATCH);
  EXPECT_EQ(error_of<UnsupportedError>([&] { JpegDecoder decoder(context); }),
            "JPEG decoder: nvJPEG does not start on cuda:0: NVJPEG_STATUS_ARCH_MISMATCH");
  nvjpeg_standin::fail("nvjpegJpegStateCreate", NVJPEG_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(error_of<UnsupportedError>([&] { JpegDecoder decoder(context); }),
            "JPEG decoder: nvJPEG does not start on cuda:0: NVJPEG_STATUS_NOT_INITIALIZED");
  EXPECT_EQ(nvjpeg_standin::leaks(), Texts{});
}

TEST_F(JpegDecoderTest, ArgumentsAreChecked) {
  CudaContext context(Device::cuda(0));
  EXPECT_EQ(error_of<UsageError>([&] { JpegDecoder decoder(context, {.most = 0}); }),
            "JPEG decoder: most is 0, expected 1 to 65536");
  EXPECT_EQ(error_of<UsageError>([&] { JpegDecoder decoder(context, {.most = 1 << 20}); }),
            "JPEG decoder: most is 1048576, expected 1 to 65536");
  EXPECT_EQ(error_of<UsageError>([&] { JpegDecoder decoder(context, {.host_threads = 0}); }),
            "JPEG decoder: host_threads is 0, expected 1 or more");
  JpegDecoder first(context, {.most = 2});
  JpegDecoder decoder = std::move(first);
  Batch batch(context, some_files());
  EXPECT_EQ(error_of<UsageError>([&] { decoder.decode(batch.files()); }), "JPEG decoder: 5 files, expected at most 2");
  std::vector<JpegDecoder::File> files(batch.files().begin(), batch.files().begin() + 2);
  files[1].height = 0;
  expect_error<UsageError>([&] { decoder.decode(files); }, {"file 1 of 2 has 1 x 0 pixels"});
  files[1] = batch.files()[1];
  files[0].pixels = nullptr;
  EXPECT_NE(error_of<UsageError>([&] { decoder.decode(files); }), "");
  EXPECT_EQ(decodings(), 0);
}

TEST_F(JpegDecoderTest, OnTheContextsDeviceWhateverTheThreadsIs) {
  restart({.devices = 2});
  CudaContext context(Device::cuda(1));
  {
    JpegDecoder decoder(context, {.most = 5});
    Batch batch(context, some_files());
    decoder.decode(batch.files());
    EXPECT_EQ(batch.pixels(), batch.expected());
  }
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{1});
}

TEST_F(JpegDecoderTest, OnlyOnAGpu) {
  CpuContext host;
  EXPECT_EQ(error_of<UnsupportedError>([&] { JpegDecoder decoder(host); }),
            "JPEG decoder: nvJPEG decodes on GPUs, not on cpu");
  EXPECT_EQ(ops::jpeg_decoder_problem(Device::cpu()), "nvJPEG decodes on GPUs, not on cpu");
  EXPECT_EQ(ops::jpeg_decoder_problem(Device::cuda(0)), "");
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{}) << "nobody has asked a GPU";
}

}  // namespace
}  // namespace lockstep

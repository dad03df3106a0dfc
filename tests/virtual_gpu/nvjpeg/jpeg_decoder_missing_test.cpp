// Tests the JPEG decoder where libnvjpeg cannot be loaded.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <gtest/gtest.h>

#include <string>

#include <lockstep/runtime/base/error.hpp>

#include "control.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep {
namespace {

TEST(JpegDecoderMissing, TheReasonNamesTheLibraries) {
  standin::reset();
  const std::string problem = ops::jpeg_decoder_problem(Device::cuda(0));
  EXPECT_TRUE(problem.starts_with("nvJPEG cannot be loaded: libnowhere.so.1: ")) << problem;
  EXPECT_NE(problem.find("; libnowhere.so: "), std::string::npos) << problem;
  CudaContext context(Device::cuda(0));
  EXPECT_EQ(testing::error_of<UnsupportedError>([&] { ops::JpegDecoder decoder(context); }),
            "JPEG decoder: " + problem);
  EXPECT_EQ(ops::jpeg_decoder_problem(Device::cpu()), "nvJPEG decodes on GPUs, not on cpu");
}

}  // namespace
}  // namespace lockstep

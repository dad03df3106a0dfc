// Tests the JPEG decoder of builds without nvJPEG.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

TEST(JpegDecoderNone, SaysWhy) {
  CpuContext host;
  EXPECT_EQ(error_of<UnsupportedError>([&] { ops::JpegDecoder decoder(host); }),
            "JPEG decoder: nvJPEG decodes on GPUs, not on cpu");
  EXPECT_EQ(ops::jpeg_decoder_problem(Device::cpu()), "nvJPEG decodes on GPUs, not on cpu");
  EXPECT_EQ(ops::jpeg_decoder_problem(Device::cuda(0)), "this build has no nvJPEG (LOCKSTEP_NVJPEG)");
}

}  // namespace
}  // namespace lockstep::testing

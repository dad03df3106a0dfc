#include <lockstep/runtime/machine/device.hpp>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

TEST(Device, ParseAndPrint) {
  EXPECT_EQ(Device::parse("cpu"), Device::cpu());
  EXPECT_EQ(Device::parse("gpu"), Device::cuda(0));
  EXPECT_EQ(Device::parse("gpu:0"), Device::gpu(0));
  EXPECT_EQ(Device::parse("cuda:0"), Device::gpu(0));
  EXPECT_EQ(Device::gpu(3), Device::cuda(3));
  EXPECT_EQ(Device::parse("cuda"), Device::cuda(0));
  EXPECT_EQ(Device::parse("cuda:7"), Device::cuda(7));
  EXPECT_EQ(Device::parse("gpu:12"), Device::cuda(12));
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(concat(Device::cuda(3)), "cuda:3");
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
  EXPECT_NE(Device::cuda(0), Device::cpu());
}

TEST(Device, ParseRefusesOtherText) {
  for (const char* text : {"", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:-0", "cuda:+1", "cuda:1x", "cuda:1:2",
                           "gpu: 1", "cuda:99999999999", "tpu", ":1"}) {
    expect_error<UsageError>([&] { static_cast<void>(Device::parse(text)); }, {concat("'", text, "'")});
  }
}

TEST(Device, CountNeverThrowsForAMissingGpu) {
  EXPECT_GE(num_gpus(), 0);
}

}  // namespace
}  // namespace lockstep::testing

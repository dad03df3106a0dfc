#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/conv2d_cases.hpp"

/// Convolutions of real networks.
namespace lockstep::testing {

/// Returns the convolutions of ResNet-20 for CIFAR. The input image has 4 channels, because its 3 channels are padded
/// to 4.
inline std::vector<ConvCase> resnet20_cases(std::int64_t batch) {
  const auto halving = [&](std::int64_t size, std::int64_t in) {
    ops::ConvDesc d = square(batch, size, in, 2 * in, 3, 2, 1);
    d.pad_after = {0, 0, 0};
    return d;
  };
  return {
      {"32x32_4_to_16", square(batch, 32, 4, 16, 3, 1, 1)},
      {"32x32_16_to_16", square(batch, 32, 16, 16, 3, 1, 1)},
      {"32x32_16_to_32_half", halving(32, 16)},
      {"16x16_32_to_32", square(batch, 16, 32, 32, 3, 1, 1)},
      {"16x16_32_to_64_half", halving(16, 32)},
      {"8x8_64_to_64", square(batch, 8, 64, 64, 3, 1, 1)},
  };
}

/// Returns one convolution of each kind that ResNet-50 has.
inline std::vector<ConvCase> resnet50_cases(std::int64_t batch) {
  ops::ConvDesc half = square(batch, 56, 128, 128, 3, 2, 1);
  half.pad_after = {0, 0, 0};
  ops::ConvDesc stem = square(batch, 224, 4, 64, 7, 2, 3);
  stem.pad_after = {2, 2, 0};
  return {
      {"stem", stem},
      {"56x56_64_to_64", square(batch, 56, 64, 64, 3, 1, 1)},
      {"56x56_64_to_256_k1", square(batch, 56, 64, 256, 1, 1, 0)},
      {"56x56_128_to_128_half", half},
      {"56x56_256_to_512_k1_half", square(batch, 56, 256, 512, 1, 2, 0)},
      {"14x14_256_to_256", square(batch, 14, 256, 256, 3, 1, 1)},
      {"14x14_1024_to_256_k1", square(batch, 14, 1024, 256, 1, 1, 0)},
      {"7x7_512_to_512", square(batch, 7, 512, 512, 3, 1, 1)},
  };
}

}  // namespace lockstep::testing

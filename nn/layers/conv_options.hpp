#pragma once

#include <cstdint>

#include <lockstep/nn/layers/axis_sizes.hpp>

namespace lockstep::nn {

/// How the weight of a convolution begins; its bias begins as 0.
enum class ConvInit : unsigned char {
  he,  ///< normal with deviation sqrt(2 / fan out) (He et al. 2015)
  /// Uniform in 1 / sqrt(fan in), as PyTorch's, but the first filters, as many as channels are read, are the identity:
  /// filter i gives channel i as it is (Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", section 3.3;
  /// Zagoruyko and Komodakis 2017, "DiracNets"). One group.
  identity
};

/// Of a convolution over one to three axes. Sizes are one number for every axis or one for each: {.kernel = {1, 3, 3}}.
struct ConvOptions {
  AxisSizes kernel = 3;
  AxisSizes stride = 1;
  AxisSizes pad = 0;  ///< on both sides of an axis
  bool bias = false;
  std::int64_t groups = 1;  ///< each reads 1 / groups of the input's channels and makes 1 / groups of the output's
  AxisSizes dilation = 1;
  ConvInit init = ConvInit::he;
};
using Conv2dOptions = ConvOptions;

/// Of a transposed convolution, as of torch.nn.ConvTranspose2d; sizes as above. Along each axis
///   output extent = (input - 1) * stride - 2 * pad + dilation * (kernel - 1) + output_pad + 1
struct ConvTransposeOptions {
  AxisSizes kernel = 2;
  AxisSizes stride = 2;
  AxisSizes pad = 0;
  AxisSizes output_pad = 0;  ///< positions more at the end: less than the stride
  bool bias = false;
  std::int64_t groups = 1;  ///< each reads 1 / groups of the input's channels and makes 1 / groups of the output's
  AxisSizes dilation = 1;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>

#include <lockstep/nn/layers/axis_sizes.hpp>

namespace lockstep::nn {

/// Initial values of a convolution's weight. The initial bias is 0.
enum class ConvInit : unsigned char {
  he,  ///< normal with standard deviation sqrt(2 / fan out) (He et al. 2015)
  /// Uniform in [-b, b), b = 1 / sqrt(fan in), as in PyTorch. Then the first filters, one per input channel, become the
  /// identity: filter i returns channel i. Requires groups = 1. (Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a
  /// Single GPU", section 3.3; Zagoruyko and Komodakis 2017, "DiracNets".)
  identity
};

/// Options of a convolution over one to three axes. Each size is one number for all axes, or one number for each axis,
/// like {.kernel = {1, 3, 3}}.
struct ConvOptions {
  AxisSizes kernel = 3;
  AxisSizes stride = 1;
  AxisSizes pad = 0;  ///< number of zeros added on each side of an axis
  bool bias = false;
  std::int64_t groups = 1;  ///< each group maps 1 / groups of the input channels to 1 / groups of the output channels
  AxisSizes dilation = 1;
  ConvInit init = ConvInit::he;
};
using Conv2dOptions = ConvOptions;

/// Options of a transposed convolution, as in torch.nn.ConvTranspose2d. ConvOptions describes the sizes. For each axis:
///   output extent = (input extent - 1) * stride - 2 * pad + dilation * (kernel - 1) + output_pad + 1
struct ConvTransposeOptions {
  AxisSizes kernel = 2;
  AxisSizes stride = 2;
  AxisSizes pad = 0;
  AxisSizes output_pad = 0;  ///< positions added at the end of each axis; must be less than the stride
  bool bias = false;
  std::int64_t groups = 1;  ///< number of channel groups, as in ConvOptions
  AxisSizes dilation = 1;
};

}  // namespace lockstep::nn

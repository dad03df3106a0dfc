#pragma once

#include <cstdint>

namespace lockstep::nn {

/// How the weight of a convolution begins; its bias begins as 0.
enum class ConvInit : unsigned char {
  he,  ///< normal with deviation sqrt(2 / fan out) (He et al. 2015)
  /// Uniform in 1 / sqrt(fan in), as PyTorch's, but the first filters, as many as channels are read, are the identity:
  /// filter i gives channel i as it is (Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", section 3.3;
  /// Zagoruyko and Komodakis 2017, "DiracNets"). One group.
  identity
};

/// Of a convolution over one to three axes: each number holds for every axis.
struct ConvOptions {
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t pad = 0;
  bool bias = false;
  std::int64_t groups = 1;  ///< each reads 1 / groups of the input's channels and makes 1 / groups of the output's
  std::int64_t dilation = 1;
  ConvInit init = ConvInit::he;
};
using Conv2dOptions = ConvOptions;

/// Of a transposed convolution, as of torch.nn.ConvTranspose2d; each number holds for every axis:
///   output extent = (input - 1) * stride - 2 * pad + dilation * (kernel - 1) + output_pad + 1
struct ConvTransposeOptions {
  std::int64_t kernel = 2;
  std::int64_t stride = 2;
  std::int64_t pad = 0;
  std::int64_t output_pad = 0;  ///< positions more at the end: less than the stride
  bool bias = false;
  std::int64_t groups = 1;  ///< each reads 1 / groups of the input's channels and makes 1 / groups of the output's
  std::int64_t dilation = 1;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

struct BatchNormOptions {
  bool relu = false;
  NodeId residual{};  ///< added before the ReLU when given
  double epsilon = 1e-5;
  double momentum = 0.1;      ///< weight of the new batch in the running statistics
  double initial_weight = 1;  ///< the norm's; 0: a block starts as the identity (Goyal et al. 2017, section 5.1)
  /// Initial running statistics, one number per channel, if they were computed from data; empty: mean 0, variance 1.
  std::vector<double> running_mean{};
  std::vector<double> running_var{};
};

struct LinearOptions {
  /// Initial values. he_init: the weight is normal with the standard deviation of He et al. 2015 for ReLU nets, else
  /// with `deviation` if that is above 0; the bias is zero. Otherwise weight and bias are uniform in [-b, b),
  /// b = 1 / sqrt(fan in), as in PyTorch.
  bool he_init = false;
  double deviation = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::identity;  ///< applied in one pass with bias and residual
  NodeId residual{};                                       ///< added after the activation when given
  /// Name of the weight; empty: "NAME.weight". The name of another layer's weight ties the two weights.
  std::string weight = {};
};

struct AttentionOptions {
  std::int64_t heads = 1;
  bool causal = false;  ///< true: a position attends only to itself and to earlier positions
};

}  // namespace lockstep::nn

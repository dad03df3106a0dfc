#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

struct BatchNormOptions {
  bool relu = false;
  NodeId residual{};  ///< tensor added before the ReLU, if given
  double epsilon = 1e-5;
  double momentum = 0.1;      ///< weight of the new batch in the running statistics, 0 to 1
  double initial_weight = 1;  ///< initial scale; 0 makes a block begin as the identity (Goyal et al. 2017, sec. 5.1)
  /// Initial running statistics, such as means over data: one number per channel. If empty, means are 0, variances 1.
  std::vector<double> running_mean{};
  std::vector<double> running_var{};
};

struct LinearOptions {
  /// If `he_init` is true or `deviation` is above 0, the initial weight is normal and the initial bias 0. If `he_init`
  /// is true, the standard deviation follows He et al. 2015 for ReLU nets, otherwise it is `deviation`. If neither is
  /// set, weight and bias are uniform in [-b, b), b = 1 / sqrt(fan in), as in PyTorch.
  bool he_init = false;
  double deviation = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::identity;  ///< function applied in one pass with bias and residual
  NodeId residual{};                                       ///< tensor added after the activation, if given
  /// Name of the weight; empty means "NAME.weight". If this is the name of another layer's weight, both layers share
  /// that weight.
  std::string weight = {};
};

struct AttentionOptions {
  std::int64_t heads = 1;
  bool causal = false;  ///< true: a position attends only to itself and to earlier positions
};

}  // namespace lockstep::nn

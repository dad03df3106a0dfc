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
  double initial_weight = 1;  ///< 0: the block starts as the identity (Goyal et al. 2017, section 5.1)
  /// The running statistics begin with these, one number a channel, as when they were computed from data; empty: 0
  /// and 1.
  std::vector<double> running_mean{};
  std::vector<double> running_var{};
};

struct LinearOptions {
  /// The weight begins normal with the deviation of He et al. 2015 for ReLU nets, or with `deviation` where that is
  /// above 0, and the bias zero; else both begin uniform in 1 / sqrt(fan in), as PyTorch's do.
  bool he_init = false;
  double deviation = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::identity;  ///< in the same pass as bias and residual
  NodeId residual{};                                       ///< added behind the activation when given
  /// The name of the weight when it is not "NAME.weight": that of another layer's ties the two.
  std::string weight = {};
};

struct AttentionOptions {
  std::int64_t heads = 1;
  bool causal = false;  ///< a position attends to itself and to those before it
};

}  // namespace lockstep::nn

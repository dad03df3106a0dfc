#pragma once

#include <cstdint>
#include <string>

#include <lockstep/kernels/sgd.hpp>
#include <lockstep/nn/parameter_set.hpp>

namespace lockstep::nn {

/// Stochastic gradient descent over arena ranges; its state is the arena "momentum_buffer" of the ParameterSet.
class Sgd {
 public:
  /// Adds the state arena when momentum > 0. UsageError for momentum outside [0, 1) or Nesterov without momentum.
  Sgd(Context& context, ParameterSet& parameters, const ops::SgdOptions& options);

  /// Updates arena elements [begin, end): the whole arena, a bucket or a shard. learning_rate: f64 scalar on the
  /// device.
  void update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end);
  void update(Context& context, const TensorView& learning_rate) {
    update(context, learning_rate, 0, parameters_.numel());
  }

 private:
  ParameterSet& parameters_;
  ops::SgdOptions options_;
  TensorView momentum_;
};

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// An exponential moving average of the weights beside them (Polyak and Juditsky 1992; torch.optim.swa_utils.
/// AveragedModel with use_buffers, torchvision's ExponentialMovingAverage, timm's ModelEmaV3): behind an update
///
///   average += weight(update) * (value - average)
///
/// for every parameter that is not frozen, and for each rank's running statistics, which belong to these weights and
/// not to the newest. The average lies in the ParameterSet, in checkpoints (each rank's statistics, too) and, as a
/// model file of its own, beside the model's (nn/step/state_file.hpp). Updates that an optimizer skips count.
struct MovingAverageOptions {
  double decay = 0;  ///< 0 <= decay < 1; 0: no average
  /// Updates from one averaging to the next, over the whole run; the first update is one. torchvision counts them anew
  /// in each epoch.
  std::int64_t every = 1;
  /// Every averaging of so many updates, and the first one behind them, copies the weights: torchvision's while its
  /// learning rate warms up, timm's update_after_step.
  std::int64_t copied_updates = 0;
  bool ramp = false;  ///< the n-th averaging behind these has a decay of at most 1 - (1 + n)^(-2/3) (timm)

  [[nodiscard]] bool on() const { return decay > 0; }
  /// The share of the weights behind an update of the run, counted from 1: 1 copies them, 0 leaves the average alone.
  /// scheduled: the update's number for copied_updates and ramp, which is another one where the run has gone on with
  /// batches of another size (Trainer::learning_rate()).
  [[nodiscard]] double weight(std::int64_t update, std::int64_t scheduled) const;
  [[nodiscard]] double weight(std::int64_t update) const { return weight(update, update); }
};

/// The average in a ParameterSet; nothing is given in a set without one.
struct MovingAverage {
  TensorView weights;     ///< a state like those of the optimizer, so ranks divide it as they divide the others
  TensorView statistics;  ///< like ParameterSet::statistics(), of each rank
  TensorView buffers;     ///< the mean of `statistics` over the ranks, which belongs to the averaged weights; like
                          ///< evaluation_buffer_arena(), and written by the code that averages
};
/// Adds an average to the states of a set, all zero when made; StateRegistry::follow() sets it to the weights and
/// statistics. Once (StateError).
void add_average(Context& context, ParameterSet& parameters);
[[nodiscard]] MovingAverage average_of(const ParameterSet& parameters);

/// UsageError for values out of range.
void require_moving_average(const MovingAverageOptions& options);
/// All settings that decide numbers: "0.999", "0.999 every 32, copied for 100, ramp".
[[nodiscard]] std::string text_of(const MovingAverageOptions& options);
void describe(Schema& schema, MovingAverageOptions& options);

}  // namespace lockstep::nn

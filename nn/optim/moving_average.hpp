#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// An exponential moving average (EMA) of the weights, kept beside them (Polyak and Juditsky 1992;
/// torch.optim.swa_utils.AveragedModel with use_buffers, torchvision's ExponentialMovingAverage, timm's ModelEmaV3).
/// After an update
///
///   average += weight(update) * (value - average)
///
/// for every parameter that is not frozen, and for each rank's running statistics: averaged weights need averaged
/// statistics. The average lies in the ParameterSet, in checkpoints (with each rank's statistics) and in a model file
/// of its own beside the model's (nn/step/state_file.hpp). Updates that an optimizer skips count, too.
struct MovingAverageOptions {
  double decay = 0;  ///< 0 <= decay < 1; 0: no average
  /// Updates from one averaging to the next, counted over the whole run; the first update averages. torchvision counts
  /// anew in each epoch.
  std::int64_t every = 1;
  /// Averagings within the first `copied_updates` updates, and the first averaging after them, copy the weights, as
  /// torchvision does while its learning rate warms up; timm's update_after_step.
  std::int64_t copied_updates = 0;
  bool ramp = false;  ///< the n-th averaging after the copies has a decay of at most 1 - (1 + n)^(-2/3) (timm)

  [[nodiscard]] bool on() const { return decay > 0; }
  /// Returns the weight of the parameters in the average after update number `update` of the run, counted from 1: 1
  /// copies them, 0 leaves the average alone. scheduled: the update's number for copied_updates and ramp. It differs
  /// from `update` if the run has gone on with another batch size (Trainer::learning_rate()).
  [[nodiscard]] double weight(std::int64_t update, std::int64_t scheduled) const;
  [[nodiscard]] double weight(std::int64_t update) const { return weight(update, update); }
};

/// The average in a ParameterSet; no view is given if the set has no average.
struct MovingAverage {
  TensorView weights;     ///< a state like the optimizer's: ranks divide it in the same way
  TensorView statistics;  ///< this rank's, like ParameterSet::statistics()
  /// The mean of `statistics` over the ranks, for the averaged weights; like evaluation_buffer_arena(), and written by
  /// the code that averages.
  TensorView buffers;
};
/// Adds an average to the states of a set, all zero when made. StateRegistry::follow() sets it to the weights and
/// statistics. A second call throws StateError.
void add_average(Context& context, ParameterSet& parameters);
[[nodiscard]] MovingAverage average_of(const ParameterSet& parameters);

/// Throws UsageError for values out of range.
void require_moving_average(const MovingAverageOptions& options);
/// Returns all settings that decide numbers: "0.999", "0.999 every 32, copied for 100, ramp".
[[nodiscard]] std::string text_of(const MovingAverageOptions& options);
void describe(Schema& schema, MovingAverageOptions& options);

}  // namespace lockstep::nn

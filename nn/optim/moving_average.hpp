#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Options of an exponential moving average (EMA) of the weights, kept in addition to the weights (Polyak and Juditsky
/// 1992; torch.optim.swa_utils.AveragedModel with use_buffers, torchvision's ExponentialMovingAverage, timm's
/// ModelEmaV3). After an update, all parameters that are not frozen and the rank's running statistics are averaged:
///
///   average += weight(update) * (value - average)
///
/// Running statistics are averaged too, because the statistics of the newest weights would not fit the averaged
/// weights. The average is in the ParameterSet, in checkpoints (with each rank's statistics) and in ema.safetensors
/// (nn/step/state_file.hpp). An update that the optimizer skips is counted and averaged like any other update.
struct MovingAverageOptions {
  double decay = 0;  ///< part of the average that one averaging keeps, 0 <= decay < 1; 0: no average is kept
  /// Number of updates from one averaging to the next, counted over the whole run. The first update of the run is
  /// averaged. (torchvision starts to count again in each epoch.)
  std::int64_t every = 1;
  /// Number of updates at the start of the run during which an averaging copies the weights. The first averaging after
  /// these updates also copies. (torchvision copies while the learning rate warms up. timm calls this option
  /// update_after_step.)
  std::int64_t copied_updates = 0;
  bool ramp = false;  ///< true: the n-th averaging after the copies has a decay of at most 1 - (1 + n)^(-2/3) (timm)

  [[nodiscard]] bool on() const { return decay > 0; }
  /// Returns the weight of the parameters in the average after update `update` of the run, counted from 1. A weight of
  /// 1 copies the parameters, 0 leaves the average unchanged. `update` decides whether there is an averaging (see
  /// `every`). `scheduled` is the number of the update in the learning rate schedule, and is used for copied_updates
  /// and `ramp`. `scheduled` differs from `update` if the run continued with another batch size
  /// (Trainer::learning_rate()).
  [[nodiscard]] double weight(std::int64_t update, std::int64_t scheduled) const;
  [[nodiscard]] double weight(std::int64_t update) const { return weight(update, update); }
};

/// Views of the average in a ParameterSet. If the set has no average, all views are without memory.
struct MovingAverage {
  TensorView weights;     ///< averaged weights, a state that ranks divide like the optimizer's states
  TensorView statistics;  ///< averages of this rank's statistics, like ParameterSet::statistics()
  /// Mean of `statistics` over the ranks, for evaluation with the averaged weights. The code that averages running
  /// statistics over the ranks writes this view and ParameterSet::evaluation_buffer_arena().
  TensorView buffers;
};
/// Adds an average to the states of a set. The average is zero until StateRegistry::follow() sets it to the weights and
/// statistics. A second call throws StateError.
void add_average(Context& context, ParameterSet& parameters);
[[nodiscard]] MovingAverage average_of(const ParameterSet& parameters);

/// Throws UsageError for a field of the options that is out of range.
void require_moving_average(const MovingAverageOptions& options);
/// Returns a text of all settings that affect numbers: "0.999", "0.999 every 32, copied for 100, ramp".
[[nodiscard]] std::string text_of(const MovingAverageOptions& options);
void describe(Schema& schema, MovingAverageOptions& options);

}  // namespace lockstep::nn

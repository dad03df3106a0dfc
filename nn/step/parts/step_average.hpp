#pragma once

#include <vector>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/kernels/lerp.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/optim/moving_average.hpp>
#include <lockstep/nn/step/parts/step_trace.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

/// The moving average of a step's weights, which take() updates. Between begin() and end(), the average replaces the
/// parameters, so that an evaluation uses the average.
class StepAverage {
 public:
  /// Adds the states of the average to `parameters` if `options.on()`. `divided` is the number of buckets that are
  /// divided over the ranks (zero1). If `divided` is above 0, each rank averages only its own part. Context, parameters
  /// and reducer must outlive this object.
  StepAverage(Context& context, ParameterSet& parameters, const MovingAverageOptions& options,
              comm::GradientReducer& reducer, int divided)
      : context_(context), parameters_(parameters), options_(options), reducer_(reducer), divided_(divided) {
    if (options.on()) {
      add_average(context, parameters);
      own_ = parameters.state_pieces();
    }
  }

  /// Sets the numbers of updates that were done before this step object was made: `updates` in the whole run, and
  /// `scheduled` in the run's learning rate schedule. Must be called before the first update.
  void set_behind(std::int64_t updates, std::int64_t scheduled) {
    updates_before_ = updates;
    scheduled_before_ = scheduled;
  }
  /// Enqueues the averaging after update `step`, which must be the update that was enqueued last. Allocates no memory.
  void take(std::int64_t step, const StepTrace& trace) {
    const double share = options_.weight(updates_before_ + step, scheduled_before_ + step);
    if (share == 0) {
      return;
    }
    trace.span(context_.stream(), StepTrace::average, [&] {
      const MovingAverage average = average_of(parameters_);
      for (const auto& [begin, end] : own_) {
        ops::lerp(context_, share, parameters_.values().slice(0, begin, end),
                  parameters_.state_range(average.weights, begin, end));
      }
      ops::lerp(context_, share, parameters_.statistics(), average.statistics);
    });
  }

  /// Implements TrainStep::begin_average(). `added` is the number of micro-batches since the last update. synchronize()
  /// must wait for the device and check the communicator.
  template <class Synchronize>
  void begin(std::int64_t added, Synchronize&& synchronize) {
    require<StateError>(options_.on(), "train step: begin_average() without a moving average, expected ",
                        "TrainStepOptions::average");
    require<StateError>(added == 0 && !begun_, "train step: begin_average() ",
                        begun_ ? "a second time, expected end_average() before"
                               : "between add() and update(), expected update() before");
    // Saves the parameters and evaluation buffers, which the average replaces.
    const TensorView values = parameters_.values().slice(0, 0, parameters_.trainable_numel());
    const TensorView buffers = parameters_.evaluation_buffer_arena();
    if (buffers.numel() > 0) {
      synchronize();  // synchronize() checks the communicator while it waits; the copy below does not
      kept_buffers_.resize(static_cast<std::size_t>(buffers.numel()));
      copy_now(context_, buffers, TensorView(std::span(kept_buffers_), buffers.shape));
    }
    ops::strided_copy(context_, values, parameters_.gradients());
    begun_ = true;
    try {
      const MovingAverage average = average_of(parameters_);
      for (const auto& [begin, end] : own_) {
        ops::strided_copy(context_, parameters_.state_range(average.weights, begin, end), values.slice(0, begin, end));
      }
      for (int bucket = divided_ - 1; bucket >= 0; --bucket) {
        reducer_.gather(bucket, parameters_.values());
      }
      reducer_.finish_gather();
      parameters_.round_weights(context_);
      if (buffers.numel() > 0) {
        ops::strided_copy(context_, average.buffers, buffers);
      }
    } catch (...) {
      try {
        end();
      } catch (...) {  // an error of end() is ignored; the caller gets the first error
      }
      throw;
    }
  }
  void end() {
    require<StateError>(begun_, "train step: end_average() without begin_average(), expected begin_average() before");
    begun_ = false;
    ops::strided_copy(context_, parameters_.gradients(),
                      parameters_.values().slice(0, 0, parameters_.trainable_numel()));
    parameters_.round_weights(context_);
    const TensorView buffers = parameters_.evaluation_buffer_arena();
    if (buffers.numel() > 0) {
      copy_now(context_, TensorView(std::span(kept_buffers_), buffers.shape), buffers);
    }
  }
  void require_ended(const char* call) const {  ///< between begin() and end(), throws StateError, which names `call`
    require<StateError>(!begun_, "train step: ", call,
                        " between begin_average() and end_average(), expected end_average() before");
  }

 private:
  Context& context_;
  ParameterSet& parameters_;
  MovingAverageOptions options_;
  comm::GradientReducer& reducer_;
  int divided_;
  std::int64_t updates_before_ = 0;
  std::int64_t scheduled_before_ = 0;
  std::vector<ops::ArenaPiece> own_;  ///< ranges of the arena that this rank averages
  bool begun_ = false;
  std::vector<double> kept_buffers_;  ///< copy of the evaluation buffers between begin() and end()
};

}  // namespace lockstep::nn

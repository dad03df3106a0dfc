#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer_options.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

struct Rule;  // defined in detail/rule.hpp

/// Updates a ParameterSet's arena and, in the same pass, its 16-bit weights. The states are arenas of the set, named as
/// in PyTorch: "momentum_buffer" (sgd and lars with momentum), "exp_avg" and "exp_avg_sq" (adam, adamw, muon; muon's
/// velocity is an "exp_avg", too), and the counter "step" (adam, adamw, muon: updates made). A rule of your own has its
/// own states and that counter.
///
/// With a loss scale (nn/optim/loss_scale.hpp) the updating pass divides the gradients by the scale, and the device
/// decides the scale of the next step.
///
/// With clip_norm, skip_non_finite or a loss scale, the gradients are read once more for the norm of their arena. The
/// device then decides: gradients with too large a norm are scaled down; an update whose norm is not finite is skipped
/// as a whole, including the step count. Results of the forward pass are not undone: running statistics of batch norms
/// have moved if the batch's were finite (kernels/batch_norm.hpp). Nothing waits for the device, and nothing is
/// allocated after the constructor.
///
/// If the states are divided over ranks (ParameterSet::shard_states()), each rank updates its own parts and the rests
/// (comm/gradients/shards.hpp). The norm is summed over the ranks, in another order than without division. lars sums
/// its norms of tensors over the ranks, too, in f64.
class Optimizer {
 public:
  /// Adds the states and the loss scale to the set. UsageError for options out of range. divisor: a scalar of
  /// parameters.dtype() on the device, by which the updating pass divides the gradients; not given: 1. If the divisor
  /// is not a positive, finite number, the update is skipped as a whole and the loss scale does not change.
  Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
            const TensorView& divisor = {});
  ~Optimizer();

  /// Replaces values (contiguous, f64, on the device) by their sums over the ranks, on the context's stream.
  using SumOverRanks = std::function<void(const TensorView& values)>;
  /// Begins an update, when the gradients of the whole arena are complete. Call once before update() of the ranges.
  /// With divided states `sum` is required.
  void begin(Context& context, const SumOverRanks& sum = {});
  /// Calls begin(), then update() for this rank's parts and the rests, from the last range of the arena to the first,
  /// because forward reads the last range first. Calls updated(k) after the update of range k.
  void update_shards(Context& context, const TensorView& learning_rate, const SumOverRanks& sum,
                     const std::function<void(int range)>& updated);
  /// Updates arena elements [begin, end): the whole arena, a bucket or a shard. lars updates whole parameters only
  /// (ShapeError), and with divided states only by update_shards() (StateError). muon updates all trainable elements at
  /// once (ShapeError). learning_rate: f64 scalar on the device.
  void update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end);
  /// Calls begin(), then update() for all parameters that are not frozen.
  void update(Context& context, const TensorView& learning_rate) {
    begin(context);
    update(context, learning_rate, 0, parameters_.trainable_numel());
  }

  /// The norm of the gradients of the last update, before clipping and without the loss scale; f64 scalar on the
  /// device. Given with clip_norm, skip_non_finite or a loss scale.
  [[nodiscard]] const TensorView& gradient_norm() const { return norm_; }
  /// Updates skipped since the constructor because of that norm; i64 scalar on the device. Given when gradient_norm()
  /// is.
  [[nodiscard]] const TensorView& skipped() const { return skipped_; }
  [[nodiscard]] std::size_t bytes() const;  ///< allocated bytes, without the states

 private:
  [[nodiscard]] bool counts() const { return step_.given(); }
  /// True when the norm of the gradients is needed.
  [[nodiscard]] bool measures() const {
    return options_.clip_norm > 0 || options_.skip_non_finite || options_.loss_scale.scales();
  }
  void measure(Context& context, const SumOverRanks& sum);
  /// Describes the update of arena elements [begin, end), without states.
  [[nodiscard]] ops::ArenaUpdate update_of(const TensorView& learning_rate, std::int64_t begin, std::int64_t end) const;
  /// Calls f(begin, end, of_all) for this rank's part of a range, and with of_all for the rest, which all ranks have.
  /// Does not call f for an empty part or rest.
  template <class F>
  void for_own(const comm::Shards& range, F&& f) const;
  [[nodiscard]] bool has_factor() const { return measures() || divisor_.given(); }
  ParameterSet& parameters_;
  OptimizerOptions options_;
  TensorView divisor_;
  std::unique_ptr<Rule> rule_;
  std::vector<TensorView> states_;
  std::vector<TensorView> state_ranges_;  ///< ranges of the states for the current update
  TensorView step_;
  Buffer memory_;  ///< memory of the scalars and the workspace below
  TensorView factor_;
  TensorView skip_;
  TensorView squared_norm_;  ///< scalar; with divided states two numbers per range: own part, rest
  TensorView sums_;          ///< the rule's sums over whole tensors, with divided states
  bool has_sums_ = false;    ///< sums_ holds the sums of this update
  TensorView norm_;
  TensorView skipped_;
  TensorView workspace_;  ///< for the norm of all gradients, and for the rule after it
};

}  // namespace lockstep::nn

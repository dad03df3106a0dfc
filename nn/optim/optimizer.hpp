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

/// Updates a ParameterSet's arena and, in the same pass, the set's 16-bit weights. Never waits for the device, and
/// allocates only in the constructor.
///
/// The optimizer's states are arenas of the set with PyTorch's names: "momentum_buffer" (sgd and lars with momentum),
/// "exp_avg" and "exp_avg_sq" (adam, adamw, muon). In muon, "exp_avg" also holds the velocity of hidden matrices. adam,
/// adamw and muon also have the counter "step", the number of updates made. A user's rule has the states that
/// UpdateRule::states() names, and also the counter "step".
///
/// With a loss scale (nn/optim/loss_scale.hpp), the pass that updates also divides the gradients by the scale, and the
/// device computes the scale of the next step.
///
/// With clip_norm, skip_non_finite or a loss scale, an additional pass computes the norm of all gradients. If the norm
/// is larger than clip_norm, the update scales the gradients down. If the norm is not finite, the update is skipped,
/// and the step count does not change. A skipped update does not undo the forward pass: running statistics of batch
/// norms have changed if the batch's statistics were finite (kernels/batch_norm.hpp).
///
/// If the states are divided over ranks (ParameterSet::shard_states()), each rank updates its own part of every range.
/// Each rank also updates the few elements at the end of a range that are too few to be divided
/// (comm/gradients/shards.hpp). The norm is then summed over the ranks, so its last bits can differ from the norm
/// without division. lars also sums its norms of tensors over the ranks, in f64.
class Optimizer {
 public:
  /// Adds the states and the loss scale to the set. Throws UsageError for options out of range. The pass that updates
  /// divides the gradients by `divisor`, a scalar of parameters.dtype() on the device; without a divisor the gradients
  /// are not divided. If the divisor is not a positive, finite number, the update is skipped as a whole and the loss
  /// scale does not change.
  Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
            const TensorView& divisor = {});
  ~Optimizer();

  /// Replaces `values` (contiguous, f64, on the device) by their sums over the ranks, on the context's stream.
  using SumOverRanks = std::function<void(const TensorView& values)>;
  /// Begins an update. Call this function once when the gradients of the whole arena are complete, before update() is
  /// called for ranges. `sum` is required if the states are divided.
  void begin(Context& context, const SumOverRanks& sum = {});
  /// Updates this rank's part of all ranges of ParameterSet::state_shards(). First calls begin(). Then, for each range
  /// k from the last to the first, calls update() for this rank's part and for the elements that are too few to be
  /// divided, and then calls updated(k).
  void update_shards(Context& context, const TensorView& learning_rate, const SumOverRanks& sum,
                     const std::function<void(int range)>& updated);
  /// Updates arena elements [begin, end): the whole arena, a bucket or a shard. `learning_rate` is an f64 scalar on the
  /// device. lars throws ShapeError if the range cuts a parameter, and StateError if the states are divided and the
  /// call does not come from update_shards(). muon throws ShapeError if the range does not hold all trainable elements.
  void update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end);
  /// Calls begin(), then update() for all parameters that are not frozen.
  void update(Context& context, const TensorView& learning_rate) {
    begin(context);
    update(context, learning_rate, 0, parameters_.trainable_numel());
  }

  /// The norm of the last update's gradients, before clipping and without the loss scale: an f64 scalar on the device.
  /// The view is given only with clip_norm, skip_non_finite or a loss scale.
  [[nodiscard]] const TensorView& gradient_norm() const { return norm_; }
  /// Number of updates skipped since the constructor because of gradient_norm(): an i64 scalar on the device. The view
  /// is given exactly when gradient_norm() is given.
  [[nodiscard]] const TensorView& skipped() const { return skipped_; }
  [[nodiscard]] std::size_t bytes() const;  ///< number of allocated bytes, without the states

 private:
  [[nodiscard]] bool counts() const { return step_.given(); }
  /// Returns true if the update needs the norm of the gradients.
  [[nodiscard]] bool measures() const {
    return options_.clip_norm > 0 || options_.skip_non_finite || options_.loss_scale.scales();
  }
  void measure(Context& context, const SumOverRanks& sum);
  /// Returns the description of an update of arena elements [begin, end); the description has no views of states.
  [[nodiscard]] ops::ArenaUpdate update_of(const TensorView& learning_rate, std::int64_t begin, std::int64_t end) const;
  /// Calls f(begin, end, false) for this rank's part of a range. Calls f(begin, end, true) for the elements at the end
  /// of the range that are too few to be divided; all ranks update these. Makes no call for an empty range of elements.
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
  Buffer memory_;  ///< holds the scalars and the workspace below
  TensorView factor_;
  TensorView skip_;
  /// Squared norm of the gradients, an f64 scalar. If the states are divided over ranks, two numbers per range instead:
  /// one for this rank's part, and one for the undivided elements.
  TensorView squared_norm_;
  TensorView sums_;        ///< the rule's sums over whole tensors, if states are divided
  bool has_sums_ = false;  ///< true if sums_ holds the sums of the current update
  TensorView norm_;
  TensorView skipped_;
  TensorView workspace_;  ///< scratch memory, used first for the norm and then by the rule
};

}  // namespace lockstep::nn

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

struct Rule;  // detail/rule.hpp

/// Updates a ParameterSet's arena and, in the same pass, its 16-bit weights. The states are arenas of the set, named as
/// in PyTorch: "momentum_buffer" (sgd and lars with momentum), "exp_avg" and "exp_avg_sq" (adam, adamw, muon, whose
/// velocity is an "exp_avg", too), and the counter "step" (adam, adamw, muon: updates made). A rule of your own has its
/// own states and that counter.
///
/// With a loss scale (nn/optim/loss_scale.hpp) the updating pass divides the gradients by it, and the scale of the next
/// step is decided, all on the device.
///
/// With clip_norm, skip_non_finite or a loss scale, the norm of the gradient arena is computed, which reads the
/// gradients once more, and decides on the device: gradients with too large a norm are scaled down; an update whose
/// norm is not finite is skipped as a whole, including the step count. Results of the forward pass are not undone:
/// running statistics of batch norms have moved where the batch's were finite (kernels/batch_norm.hpp). Nothing waits
/// for the device, and nothing is allocated after the constructor.
///
/// Where the states are divided over ranks (ParameterSet::shard_states()), each rank updates its own parts and the
/// rests, and the norm is summed over the ranks, in another order than without. So are the norms of each tensor that
/// lars takes, in f64.
class Optimizer {
 public:
  /// Adds the states and the loss scale. UsageError for options out of range. divisor: a scalar of parameters.dtype()
  /// on the device, by which the updating pass divides the gradients; not given: 1. When it is not a positive, finite
  /// number, the update is skipped as a whole and the loss scale does not change.
  Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
            const TensorView& divisor = {});
  ~Optimizer();

  /// values (contiguous, f64, on the device) = their sums over the ranks, for the stream of the context.
  using SumOverRanks = std::function<void(const TensorView& values)>;
  /// Begins an update, when the gradients of the whole arena are complete. Once before update() of its ranges. With
  /// divided states `sum` is required.
  void begin(Context& context, const SumOverRanks& sum = {});
  /// begin(), then update() of this rank's parts and of the rests, from the last range of the arena to the first:
  /// forward reads the last first. updated(k) follows the update of range k.
  void update_shards(Context& context, const TensorView& learning_rate, const SumOverRanks& sum,
                     const std::function<void(int range)>& updated);
  /// Updates arena elements [begin, end): the whole arena, a bucket or a shard. lars takes whole parameters only
  /// (ShapeError), and with divided states update_shards() only (StateError); muon takes all that is trainable
  /// (ShapeError). learning_rate: f64 scalar on the device.
  void update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end);
  /// begin(), then update() of all parameters that are not frozen.
  void update(Context& context, const TensorView& learning_rate) {
    begin(context);
    update(context, learning_rate, 0, parameters_.trainable_numel());
  }

  /// With one of these three options: the norm of the gradients of the last update, before clipping and without the
  /// loss scale; f64 scalar on the device.
  [[nodiscard]] const TensorView& gradient_norm() const { return norm_; }
  /// Also with one of them: the updates skipped since the constructor because of that norm; i64 scalar on the device.
  [[nodiscard]] const TensorView& skipped() const { return skipped_; }
  [[nodiscard]] std::size_t bytes() const;  ///< beside the states

 private:
  [[nodiscard]] bool counts() const { return step_.given(); }
  /// Whether the norm of the gradients is needed.
  [[nodiscard]] bool measures() const {
    return options_.clip_norm > 0 || options_.skip_non_finite || options_.loss_scale.scales();
  }
  void measure(Context& context, const SumOverRanks& sum);
  /// The update of arena elements [begin, end), without states.
  [[nodiscard]] ops::ArenaUpdate update_of(const TensorView& learning_rate, std::int64_t begin, std::int64_t end) const;
  /// Calls f(begin, end, of_all) for this rank's part of a range and, with of_all, for the rest, which all ranks have;
  /// not where they are empty.
  template <class F>
  void for_own(const comm::Shards& range, F&& f) const;
  [[nodiscard]] bool has_factor() const { return measures() || divisor_.given(); }
  ParameterSet& parameters_;
  OptimizerOptions options_;
  TensorView divisor_;
  std::unique_ptr<Rule> rule_;
  std::vector<TensorView> states_;
  std::vector<TensorView> state_ranges_;  ///< of the current range
  TensorView step_;
  Buffer memory_;  ///< of the scalars and the workspace below
  TensorView factor_;
  TensorView skip_;
  TensorView squared_norm_;  ///< scalar, or one number per range of divided states and one for all rests
  TensorView sums_;          ///< of the rule, with divided states
  bool has_sums_ = false;    ///< sums_ are those of this update
  TensorView norm_;
  TensorView skipped_;
  TensorView workspace_;  ///< for the norm of all gradients, and for the rule after it
};

}  // namespace lockstep::nn

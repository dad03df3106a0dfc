#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/loss_scale.hpp>
#include <lockstep/nn/optim/update_rule.hpp>
#include <lockstep/runtime/memory/buffer.hpp>

namespace lockstep::nn {

enum class OptimizerKind : unsigned char { sgd, adam, adamw, lars };

[[nodiscard]] std::string_view name_of(OptimizerKind kind);          ///< "sgd", ...
[[nodiscard]] OptimizerKind parse_optimizer(std::string_view name);  ///< inverse of name_of; UsageError otherwise

/// Rules and ranges of the values: kernels/sgd.hpp, adam.hpp, lars.hpp.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;                     ///< sgd, lars
  bool nesterov = false;                     ///< sgd, lars
  double beta1 = 0.9;                        ///< adam, adamw
  double beta2 = 0.999;                      ///< adam, adamw
  double epsilon = 1e-8;                     ///< adam, adamw, lars
  double trust_coefficient = 0.001;          ///< lars
  double clip_norm = 0;                      ///< largest norm of all gradients together; 0: as they come
  bool skip_non_finite = false;              ///< without clip_norm too: no update from gradients with NaN or infinity
  LossScale loss_scale{};                    ///< of the plan; unless off it skips what is not finite, too
  std::shared_ptr<const UpdateRule> rule{};  ///< one's own, instead of `kind` and its numbers
};
[[nodiscard]] std::string name_of(const OptimizerOptions& options);  ///< of the rule, if there is one, else of the kind

/// Updates of a ParameterSet's arena, and of its weights in 16 bits in the same pass. Its states are arenas of the set,
/// named as in PyTorch: "momentum_buffer" (sgd and lars with momentum), "exp_avg" and "exp_avg_sq" (adam, adamw), and
/// the counter "step" (adam, adamw: updates made). A rule of one's own has its own states and that counter.
///
/// With a loss scale (nn/optim/loss_scale.hpp) gradients are divided by it in the pass that updates, and the scale is
/// decided for the next step, all on the device.
///
/// With clip_norm, skip_non_finite or a loss scale the norm of the gradient arena decides on the device: gradients that
/// are too long are scaled down, and an update whose norm is not finite is left out as a whole, step count included.
/// That reads the gradients once more. It does not cover what the forward pass has written: a batch that is not finite
/// in front of a batch norm leaves its running statistics so. Nothing waits for the device, and nothing is allocated
/// after the constructor.
class Optimizer {
 public:
  /// Adds the states and the loss scale. UsageError for options out of range. divisor: a scalar of parameters.dtype()
  /// on the device by which gradients are divided in the pass that updates; not given: they are taken as they are.
  /// Where it is not a positive, finite number the update is left out as a whole, and the loss scale stays too.
  Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
            const TensorView& divisor = {});

  /// Begins an update: the gradients of the whole arena are there. Once before update() of its ranges.
  void begin(Context& context);
  /// Updates arena elements [begin, end): the whole arena, a bucket or a shard; whole parameters with lars, which
  /// refuses others with a ShapeError. learning_rate: f64 scalar on the device.
  void update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end);
  /// begin() and all parameters that are not frozen.
  void update(Context& context, const TensorView& learning_rate) {
    begin(context);
    update(context, learning_rate, 0, parameters_.trainable_numel());
  }

  /// With one of the three the norm of the gradients of the last update, before it was clipped and without the loss
  /// scale: f64 scalar on the device.
  [[nodiscard]] const TensorView& gradient_norm() const { return norm_; }
  /// Likewise the updates left out since the constructor because of that norm: i64 scalar on the device.
  [[nodiscard]] const TensorView& skipped() const { return skipped_; }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }  ///< beside the states

 private:
  [[nodiscard]] bool counts() const { return step_.given(); }
  /// The norm of the gradients is asked for.
  [[nodiscard]] bool measures() const {
    return options_.clip_norm > 0 || options_.skip_non_finite || options_.loss_scale.scales();
  }
  [[nodiscard]] bool has_factor() const { return measures() || divisor_.given(); }
  ParameterSet& parameters_;
  OptimizerOptions options_;
  TensorView divisor_;
  TensorView momentum_;
  TensorView first_moment_;
  TensorView second_moment_;
  std::vector<TensorView> rule_states_;
  std::vector<TensorView> rule_range_;  ///< of the range at hand
  TensorView step_;
  Buffer memory_;  ///< of the scalars and the workspace below
  TensorView factor_;
  TensorView skip_;
  TensorView squared_norm_;
  TensorView norm_;
  TensorView skipped_;
  TensorView workspace_;  ///< for the norm of all gradients, and for those of lars after it
};

}  // namespace lockstep::nn

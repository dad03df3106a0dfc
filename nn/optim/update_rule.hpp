#pragma once

#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// An optimizer of your own: it turns gradients into an update. Optimizer keeps the states (checkpoints hold them),
/// clips, divides and skips, and rounds the parameters for 16-bit plans. All ranks need the same rule; several
/// optimizers may share one rule.
///
///   struct Signs final : nn::UpdateRule {                            // on the host; signSGD, Bernstein et al. 2018
///     std::string name() const override { return "signs"; }
///     void update(Context& context, const ops::ArenaUpdate& u, const States&) const override {
///       context.stream().enqueue([u] { ... });
///     }
///   };
///   options.optimizer.rule = std::make_shared<Signs>();
class UpdateRule {
 public:
  UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;
  virtual ~UpdateRule() = default;

  /// The rule's name in checkpoints and messages; an OptimizerKind must not have the same name. A run resumes only with
  /// the same name.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The numbers that decide what the rule does, as text: "beta 0.9". A resumed run reports numbers that differ.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Names of the rule's states: arenas like that of the parameters, zero before the first update, kept in checkpoints.
  /// No state of the parameter set may have such a name ("parameters", "statistics", ...; StateError).
  [[nodiscard]] virtual std::vector<std::string> states() const { return {}; }

  struct States {
    std::span<const TensorView> arenas;  ///< (n), of the parameters' type, in the order of states()
    TensorView step;                     ///< i64 scalar: the number of this update, 1 for the first
  };
  /// Enqueues the update of a range of the arena on the context's stream. The function must not wait or allocate, and
  /// must read from the device what changes from step to step: the call may be captured once and replayed. `update` is
  /// a checked ops::ArenaUpdate: factor, skip and clip_value may be given and must be respected; copy is not given.
  virtual void update(Context& context, const ops::ArenaUpdate& update, const States& states) const = 0;
};

}  // namespace lockstep::nn

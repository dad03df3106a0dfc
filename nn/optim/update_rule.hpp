#pragma once

#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Base class of an optimizer rule of your own, which turns gradients into an update. The Optimizer keeps the rule's
/// states, also in checkpoints. The Optimizer computes the factor of the gradients (clipping, loss scale) and decides
/// whether an update is skipped; the rule must apply both. The Optimizer also rounds parameters for 16-bit plans. All
/// ranks need the same rule. Several optimizers may share one rule.
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

  /// Returns the rule's name in checkpoints and messages. The name must not be that of an OptimizerKind. A run resumes
  /// only with a rule of the same name.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns the numbers that decide what the rule does, as text: "beta 0.9". A resumed run reports changed numbers.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Returns the names of the rule's states. Each state is an arena with the layout of the parameters' arena. States
  /// are zero before the first update, and are kept in checkpoints. The Optimizer throws StateError if the ParameterSet
  /// already has a state of one of these names, such as "statistics".
  [[nodiscard]] virtual std::vector<std::string> states() const { return {}; }

  struct States {
    std::span<const TensorView> arenas;  ///< arenas in the order of states(), each a vector in the parameters' type
    TensorView step;                     ///< i64 scalar: number of this update, 1 for the first
  };
  /// Enqueues the update of a range of the arena on the context's stream. The function must not wait or allocate. A
  /// graph may capture the call once and replay it, so the function must read numbers that change between steps from
  /// the device. `update` is already checked. If `update` has a factor, skip or clip_value, the rule must apply them.
  /// update.copy is never given.
  virtual void update(Context& context, const ops::ArenaUpdate& update, const States& states) const = 0;
};

}  // namespace lockstep::nn

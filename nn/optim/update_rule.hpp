#pragma once

#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// An optimizer of one's own: what turns gradients into an update. Optimizer keeps its states, which checkpoints hold,
/// clips, divides and skips for it, and rounds the parameters for plans in 16 bits. Equal on all ranks; several
/// optimizers may share it.
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

  /// As checkpoints and messages call it; none of sgd, adam, adamw, lars. A run goes on with the same name only.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The numbers that decide what it does, as text: "beta 0.9". A run that goes on with others says so.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  /// Names of its states: arenas like that of the parameters, zero before the first update, kept in checkpoints.
  [[nodiscard]] virtual std::vector<std::string> states() const { return {}; }

  struct States {
    std::span<const TensorView> arenas;  ///< (n) of the type of the parameters, in the order of states()
    TensorView step;                     ///< i64 scalar: the number of this update, 1 for the first
  };
  /// Enqueues the update of a range of the arena on the context's stream. It waits for nothing, allocates nothing, and
  /// takes what changes from step to step from the device: the call may be captured once and replayed. `update` is as
  /// ops::ArenaUpdate says, checked: factor and skip may be given and must be heeded; copy is not given.
  virtual void update(Context& context, const ops::ArenaUpdate& update, const States& states) const = 0;
};

}  // namespace lockstep::nn

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer_options.hpp>

namespace lockstep::nn {

/// What an Optimizer does with gradients: a built-in rule, or a user's UpdateRule. One object belongs to one Optimizer,
/// which clips, skips and counts updates and keeps the states.
class Rule {
 public:
  Rule() = default;
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;
  virtual ~Rule() = default;

  /// Names of the states, as UpdateRule::states().
  [[nodiscard]] virtual std::vector<std::string> states() const = 0;
  /// Whether the ParameterSet gets the counter "step" of the updates made.
  [[nodiscard]] virtual bool counts() const { return true; }
  /// Whether the segments of an ArenaUpdate are the tensors, ParameterSet::tensor_segments(), not segments().
  [[nodiscard]] virtual bool by_tensor() const { return false; }
  [[nodiscard]] virtual std::size_t workspace_bytes() const { return 0; }
  [[nodiscard]] virtual std::size_t bytes() const { return 0; }  ///< that the rule has allocated

  /// For states that are divided over ranks: how many rows of two sums over whole tensors update() reads; 0: none.
  [[nodiscard]] virtual std::int64_t sum_rows() const { return 0; }
  /// Adds what a range of the arena holds to sums (rows, 2), f64. Called only where there are rows.
  virtual void add_sums(Context& context, const ops::ArenaUpdate& update, const TensorView& sums,
                        const TensorView& workspace) const {
    (void)context, (void)update, (void)sums, (void)workspace;
  }

  struct Views {
    std::span<const TensorView> states;  ///< their ranges, in the order of states()
    TensorView step;                     ///< i64 scalar: the number of this update, 1 for the first
    TensorView workspace;                ///< of workspace_bytes()
    TensorView sums;                     ///< of all ranks, where states are divided and there are rows
  };
  /// Enqueues the update of a range. `update` may have a copy, which is to be written in the same pass.
  virtual void update(Context& context, const ops::ArenaUpdate& update, const Views& views) = 0;
};

/// OptimizerOptions::rule as a Rule. UsageError where its name is a built-in rule's.
RuleMaker make_own;

/// Of sgd and lars: "momentum_buffer" with momentum.
[[nodiscard]] std::vector<std::string> momentum_states(double momentum);
/// Of adam, adamw, and of what muon does not orthogonalise. UsageError for options out of range.
[[nodiscard]] ops::AdamOptions adam_options(const OptimizerOptions& options, DType dtype);

}  // namespace lockstep::nn

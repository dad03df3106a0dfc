#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer_options.hpp>

namespace lockstep::nn {

/// What an Optimizer does with gradients: a built-in rule, which make_NAME() in rules/NAME.cpp makes, or a user's
/// UpdateRule. The Optimizer clips, skips and counts updates and keeps the states. No function waits or allocates.
struct Rule {
  struct Views {
    std::span<const TensorView> states;  ///< ranges of the states, in the order of the names
    TensorView step;                     ///< with `counts`: i64 scalar, the number of this update, 1 for the first
    TensorView workspace;                ///< workspace_bytes bytes
    TensorView sums;                     ///< sums over all ranks, if states are divided and there are sum_rows
  };

  std::vector<std::string> states{};  ///< names of the states, as in UpdateRule::states()
  bool counts = true;                 ///< true: the ParameterSet gets the counter "step" of the updates made
  bool by_tensor = false;             ///< true: segments of an ArenaUpdate are tensors: ParameterSet::tensor_segments()
  std::size_t workspace_bytes = 0;
  std::size_t bytes = 0;  ///< bytes that the rule has allocated
  /// Enqueues the update of a range. If `update` has a copy, the rule writes the copy, too.
  std::function<void(Context& context, const ops::ArenaUpdate& update, const Views& views)> update{};
  /// For states that are divided over ranks. sum_rows: how many rows of two sums over whole tensors update() reads.
  /// add_sums: adds a range of the arena to such sums, (rows, 2), f64.
  std::int64_t sum_rows = 0;
  std::function<void(Context&, const ops::ArenaUpdate&, const TensorView& sums, const TensorView& workspace)>
      add_sums{};
};

/// Returns the states of sgd and lars: "momentum_buffer" if there is momentum.
[[nodiscard]] std::vector<std::string> momentum_states(double momentum);
/// Returns the options of adam, adamw, and of muon's other parameters. UsageError for options out of range.
[[nodiscard]] ops::AdamOptions adam_options(const OptimizerOptions& options, DType dtype);

}  // namespace lockstep::nn

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

/// Describes how an Optimizer turns gradients into an update. make_NAME() in rules/NAME.cpp makes a built-in rule, and
/// make_own() wraps a user's UpdateRule. The Optimizer computes the factor of the gradients, decides whether an update
/// is skipped, counts updates, and keeps the states. The functions of a rule neither wait for the device nor allocate.
struct Rule {
  struct Views {
    std::span<const TensorView> states;  ///< for each state in Rule::states, the range of elements to update
    TensorView step;                     ///< i64 scalar: number of this update, 1 for the first; given only if `counts`
    TensorView workspace;                ///< scratch memory of workspace_bytes bytes
    TensorView sums;  ///< sums of add_sums() over all ranks; given only if states are divided and sum_rows is not 0
  };

  std::vector<std::string> states{};  ///< names of the states, as in UpdateRule::states()
  bool counts = true;                 ///< true: the ParameterSet gets the counter "step", the number of updates made
  bool by_tensor = false;  ///< true: an ArenaUpdate has one segment per tensor (ParameterSet::tensor_segments())
  std::size_t workspace_bytes = 0;
  std::size_t bytes = 0;  ///< number of bytes that the rule has allocated
  /// Enqueues the update of a range of the arena. If `update.copy` (the 16-bit weights) is given, the rule also writes
  /// the copy.
  std::function<void(Context& context, const ops::ArenaUpdate& update, const Views& views)> update{};
  /// Used only if states are divided over ranks. update() then needs sum_rows pairs of sums over whole tensors.
  /// add_sums() adds the contribution of a range of the arena to `sums`, an f64 tensor (sum_rows, 2).
  std::int64_t sum_rows = 0;
  std::function<void(Context&, const ops::ArenaUpdate&, const TensorView& sums, const TensorView& workspace)>
      add_sums{};
};

/// Returns the names of the states of sgd and lars: "momentum_buffer" if `momentum` is above 0, otherwise none.
[[nodiscard]] std::vector<std::string> momentum_states(double momentum);
/// Returns the options of the Adam kernel. The rules adam and adamw use this kernel for all parameters, and muon uses
/// it for all parameters except hidden matrices. Throws UsageError for options out of range.
[[nodiscard]] ops::AdamOptions adam_options(const OptimizerOptions& options, DType dtype);

}  // namespace lockstep::nn

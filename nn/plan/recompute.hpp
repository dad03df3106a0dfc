#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::nn {

/// Selects the activations that a training plan does not keep in memory from forward to backward. Backward computes
/// these activations again. All results stay the same to the bit, because the same ops run on the same inputs.
///
/// - `off`: none.
/// - `cheap`: outputs of calls with at most one operation per byte (norms, activations, pools, dropout, copies), if the
///   plan keeps the inputs of these calls anyway. Convolutions and products are not repeated.
/// - `blocks` (Chen et al. 2016, arXiv:1604.06174): the plan cuts forward into blocks, between calls where few bytes
///   pass from one block to the next. The plan keeps only the tensors that pass between blocks. Just before the
///   backward of a block, it computes the other tensors of the block again. Several cuts are compared, and also the
///   plans of `cheap` and `off`. Of all plans that need at most 2 % more workspace than the smallest, the one with the
///   fewest operations is used.
///
/// `cheap` and `blocks` never need more workspace than `off`, with one exception. With PlanOptions::beside, calls on
/// the side stream make tensors live longer. The comparison of plans ignores these longer lifetimes.
enum class Recompute : unsigned char { off, cheap, blocks };
[[nodiscard]] std::string_view name_of(Recompute recompute);

/// Number and cost of the calls that a plan computes again in backward (PlanOptions::recompute).
struct Recomputed {
  int calls = 0;
  double flops = 0, bytes = 0;  ///< operations and bytes of these calls; Plan::flops() and Plan::bytes() include them
  /// Size of the workspace if the plan kept all activations; 0 with Recompute::off.
  std::size_t workspace_bytes_without = 0;
};

}  // namespace lockstep::nn

#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::nn {

/// Selects the activations that a training plan does not keep from forward to backward, but computes again in backward.
/// All results stay the same to the bit, because the same ops run on the same inputs.
///
/// `off`: none. `cheap`: outputs of calls with at most one operation per byte (norms, activations, pools, dropout,
/// copies) that can be computed from tensors that are kept anyway. Convolutions and products are not repeated.
/// `blocks`: forward is cut into blocks between calls where few bytes pass from one block to the next. The tensors that
/// pass between blocks are kept. All other tensors of a block are computed again before the block's backward (Chen et
/// al. 2016, arXiv:1604.06174). `blocks` chooses the cuts by the planned bytes, and uses the plan of `cheap` or `off`
/// if that plan needs at most 2 % more workspace and fewer operations. `cheap` and `blocks` do not need more workspace
/// than `off`, with one exception. With PlanOptions::beside, calls on the side stream make tensors live longer, and
/// the comparison of workspaces ignores these longer lifetimes.
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

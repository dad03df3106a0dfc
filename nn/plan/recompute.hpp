#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::nn {

/// Selects the activations that a training plan does not keep from forward to backward, but computes again in backward.
/// All results keep their bits, because the same ops run on the same inputs.
///
/// `off`: none. `cheap`: outputs of calls with at most one operation per byte (norms, activations, pools, dropout,
/// copies) that can be computed from tensors that are kept anyway; convolutions and products run once. `blocks`:
/// forward is cut into blocks at places where few bytes cross. The tensors that cross are kept, and the inside of a
/// block is computed again before its backward (Chen et al. 2016, arXiv:1604.06174). The planned bytes decide where the
/// cuts are, and whether `cheap` or `off` is as good. Neither `cheap` nor `blocks` takes more workspace than `off`,
/// with one exception. With PlanOptions::beside, calls on the side stream make tensors live longer, and these longer
/// lives are planned after the choice.
enum class Recompute : unsigned char { off, cheap, blocks };
[[nodiscard]] std::string_view name_of(Recompute recompute);

/// Number and cost of the calls that a plan computes again in backward (PlanOptions::recompute).
struct Recomputed {
  int calls = 0;
  double flops = 0, bytes = 0;  ///< operations and bytes of these calls, which Plan::flops() and Plan::bytes() include
  std::size_t workspace_bytes_without = 0;  ///< workspace if the plan kept all activations; 0 with Recompute::off
};

}  // namespace lockstep::nn

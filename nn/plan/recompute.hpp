#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::nn {

/// Which activations a training plan does not keep from forward to backward but computes again in backward. Every bit
/// of the results stays: the same ops run on the same inputs. off: none. cheap: what at most one operation a byte
/// computes (the output of norms, activations, pools, dropout, copies) from what is kept anyway; convolutions and
/// products run once. blocks: forward is cut where little crosses, what crosses is kept, and the inside of a block is
/// computed again before its backward (Chen et al. 2016, arXiv:1604.06174); where the cuts lie, and whether cheap or
/// nothing does as well, is decided by the planned bytes. Neither takes more workspace than off (but for calls
/// beside others, PlanOptions::beside, which make tensors live longer and come after the choice).
enum class Recompute : unsigned char { off, cheap, blocks };
[[nodiscard]] std::string_view name_of(Recompute recompute);

/// What a plan computes again in backward (PlanOptions::recompute), and what that saves.
struct Recomputed {
  int calls = 0;
  double flops = 0, bytes = 0;              ///< of these calls, part of Plan::flops() and bytes()
  std::size_t workspace_bytes_without = 0;  ///< of the plan that keeps everything
};

}  // namespace lockstep::nn

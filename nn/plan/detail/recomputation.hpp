#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Changes a complete list of forward and backward calls so that backward computes some activations again
/// (PlanOptions::recompute). Must run before place_slots(). The function uses only the slots that each call reads and
/// writes; layers need no code for recomputation.
///
/// Here, a tensor is the memory of a slot and its aliases. The function chooses a set A of tensors that forward writes.
/// All forward calls that write a tensor of A are repeated, in their order, as backward calls ("again conv2d forward
/// ..."). So A contains all tensors that the repeated calls write, scratch memory included. The repeated calls and all
/// backward calls use a second slot (SlotInfo::again) for each slot of A. A Frame maps slots to memory, and every call
/// looks up its tensors in a Frame. Backward gets a Frame of its own, so the code of the calls does not change. A
/// tensor of A then has two lifetimes: one ends in forward, and one begins in backward. Between these lifetimes its
/// memory is free. Repeated calls form a group if one reads what another writes. A group comes before the first
/// backward call that reads one of its tensors. No call is repeated twice.
///
/// All results stay the same to the bit, because a repeated call runs the same code on the same input:
/// - A call is not repeated if it touches memory outside the workspace that the plan changes (running statistics,
///   metrics, gradients). Calls of PlanBuilder::call_once(), such as an all-gather, are not repeated either.
/// - A repeated call reads only tensors of A that its group has already written, and kept tensors. No call after the
///   original call may write into such a kept tensor, in place or through an alias.
/// - Backward writes to no tensor of A.
/// Random masks depend only on seed, epoch and sample, so a repeated call draws the same masks.
///
/// With `cheap`, A holds the tensors that calls of at most one operation per byte compute from tensors that backward
/// reads anyway. In a chain of residual blocks, these are the outputs of every second block. With `blocks`, forward is
/// cut into segments. A then holds the tensors of a segment that backward reads and no later segment reads, and all
/// tensors needed to compute them. Cuts are at calls after which later calls need the fewest bytes. The distance
/// between cuts is measured in saved bytes, and several distances are tried (Chen et al. 2016, appendix A). The
/// candidates are the plans for these distances, each with and without a repeated last segment, the plan of `cheap`,
/// and the unchanged plan. A candidate is acceptable if it needs at most 2 % more workspace than the smallest one. The
/// function uses the acceptable candidate with the fewest operations. Throws UsageError for an invalid `wanted`.
void recompute(PlanContents& contents, Recompute wanted);

}  // namespace lockstep::nn

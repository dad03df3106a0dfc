#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Changes a complete list of forward and backward calls so that backward computes some activations again
/// (PlanOptions::recompute). Must run before place_slots(). Layers do not take part: the list shows which slots each
/// call reads and writes.
///
/// A tensor is the memory of a slot and its aliases. The function chooses a set A of tensors that forward writes. All
/// forward calls that write a tensor of A are repeated, in their order, as backward calls ("again conv2d forward ...").
/// So A contains all tensors that the repeated calls write, scratch memory included. The repeated calls and all
/// backward calls use other slots (SlotInfo::again) in place of the slots of A. A call finds its memory by slot in a
/// Frame, so backward has its own Frame, and the calls themselves do not change. A tensor of A then has one life that
/// ends in forward and a second one that begins in backward. In the time between these lives its memory is free.
/// Repeated calls that feed each other form a group. A group comes before the first backward call that reads one of its
/// tensors. No call is repeated twice.
///
/// Results keep their bits, because a repeated call runs the same code on the same input:
/// - a call is not repeated if it writes or reads memory outside the workspace that the plan changes (running
///   statistics, metrics, gradients), or is marked by PlanBuilder::call_once() (the gather of shared statistics);
/// - a repeated call reads tensors of A that the same group has written before, as in forward, or kept tensors, into
///   which no call after the original one writes, in place or through an alias;
/// - backward writes to no tensor of A.
/// Random masks follow from seed, epoch and sample, so a repeated call draws the same masks.
///
/// With `cheap`, A holds the tensors that calls of at most one operation per byte compute from tensors that backward
/// reads anyway. In a chain of blocks with shortcuts these are the outputs of every second block. With `blocks`,
/// forward is cut into segments. A then holds the tensors of a segment that backward reads and no later segment reads,
/// and all tensors needed to compute them. Cuts lie where the fewest bytes cross. The distances between cuts are
/// measured in saved bytes, and several distances are tried (Chen et al. 2016, appendix A). The candidates are the
/// plans for these distances, each with and without a repeated last segment, the plan of `cheap`, and the unchanged
/// plan. Among the candidates that need at most 2 % more workspace than the smallest, the function uses the one with
/// the fewest operations. Throws UsageError for an invalid `wanted`.
void recompute(PlanContents& contents, Recompute wanted);

}  // namespace lockstep::nn

#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Makes a complete list of forward and backward calls compute some activations again (PlanOptions::recompute), before
/// place_slots(). Layers know nothing of it: it is a transformation of the list, which sees what each call reads and
/// writes.
///
/// A tensor is the memory of a slot and its aliases. What is chosen is a set A of tensors that forward writes. All
/// forward calls that write one of A are repeated, in their order, as backward calls ("again conv2d forward ..."), so A
/// holds whatever these write, scratch too. The repeated calls and all backward calls have other slots in place of
/// those of A (SlotInfo::again); a call finds its memory by slot in a Frame, so backward has a Frame of its own, and
/// the calls themselves stay as layers made them. The first life of a tensor of A then ends in forward, and the second
/// one begins in backward: memory is saved by the lifetimes alone. Repeated calls that feed each other are a group, and
/// come before the first backward call that reads one of its tensors; no call is repeated twice.
///
/// The same bits come out because a repeated call runs the same code on the same input:
/// - a call is not repeated when it writes or reads what a plan changes beside its workspace (running statistics,
///   metrics, gradients), or is marked by PlanBuilder::call_once() (the gather of shared statistics);
/// - what a repeated call reads is of A and written by the same group before, as in forward, or it is kept: then no
///   call behind the original one writes into it, in place or through an alias;
/// - backward writes to no tensor of A.
/// Random masks follow from seed, epoch and sample, so they come out again.
///
/// Which tensors: with `cheap` what calls of at most one operation a byte compute from tensors that backward reads
/// anyway; in a chain of blocks with shortcuts this is every second block's output. With `blocks` forward is cut into
/// segments, and A is what backward reads of a segment and no later segment reads, with all that leads there. Cuts lie
/// where the fewest bytes cross, at distances of a number of saved bytes for which several values are tried (Chen et
/// al. 2016, appendix A). Of these plans, with and without a repeated last segment, and of cheap and nothing, the one
/// with the fewest operations is taken that needs at most 2 % more workspace than the smallest. UsageError for a value
/// that is none of the three.
void recompute(PlanContents& contents, Recompute wanted);

}  // namespace lockstep::nn

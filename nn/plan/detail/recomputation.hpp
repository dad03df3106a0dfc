#pragma once

#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Changes a training plan so that backward computes some activations again, instead of reading activations that were
/// kept since forward (PlanOptions::recompute). `contents` must have all forward and backward calls. Must be called
/// before place_slots(). The function uses only the lists of slots that each call reads and writes, so layers need no
/// code for recomputation. Throws UsageError for an invalid `wanted`.
///
/// Definitions: a tensor is the memory that a slot and its aliases share. A is the set of tensors that backward
/// computes again. A copied call is a forward call that writes a tensor of A. Backward gets a copy of each copied call,
/// whose op begins with "again".
///
/// Order of calls: two copies are in one group if both use the same tensor of A, or if a third copy connects them in
/// this way. All copies of a group come just before the first backward call that reads a tensor of the group. Within a
/// group, copies keep the order of the forward calls.
///
/// Memory: each slot of A gets a second slot (SlotInfo::again), which copies and backward calls use instead. So a
/// tensor of A has two lifetimes: one ends in forward, the other begins in backward. Between these lifetimes, its
/// memory is free for other tensors. The code of a call does not change: it finds its tensors in a Frame, and backward
/// has its own Frame.
///
/// The results must stay the same to the bit. For this, A and its copied calls must meet these conditions:
/// - A contains every tensor that a copied call writes, scratch memory included.
/// - Outside the workspace, a copied call writes no memory, and reads no memory that a call of the plan writes.
///   Examples of memory that is written are running statistics, metrics and gradients.
/// - No copied call was made by PlanBuilder::call_once(), as an all-gather is.
/// - No backward call writes a tensor of A.
/// - If a copy reads a tensor of A, a call of the same group writes this tensor before.
/// - If a copy reads another tensor, no call writes this tensor between the forward call and its copy. The tensor stays
///   in memory until the copy runs. Dropout needs no condition: its masks depend only on seed, epoch and sample.
///
/// Recompute::cheap: A has the tensors that forward calls of at most one operation per byte compute from tensors that
/// backward reads anyway.
///
/// Recompute::blocks (Chen et al. 2016, appendix A): forward is cut into segments, at calls after which later calls
/// need the fewest bytes of earlier results. A has the tensors that backward reads and that only calls of one segment
/// use, and the tensors of this segment that are needed to compute them. The function tries several lengths of
/// segments. The length is the number of bytes that the segment writes and backward reads. For each length, the
/// function tries a plan that repeats all segments and a plan that repeats all but the last. It also tries the plan of
/// Recompute::cheap and the unchanged plan. Of all plans that need at most 2 % more workspace than the smallest, it
/// takes the plan whose copies have the fewest operations.
void recompute(PlanContents& contents, Recompute wanted);

}  // namespace lockstep::nn

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/cost_model.hpp>

namespace lockstep::comm {

/// A gradient in the arena, listed in the order in which gradients become ready.
struct GradientRange {
  std::string name;
  std::int64_t begin = 0;   ///< first element in the gradient arena
  std::int64_t end = 0;     ///< one past its last element, padding included
  int expected_writes = 1;  ///< writes per step until it is ready (tied weights: more than one)
};

/// Consecutive gradients [first, last) that are reduced by one all-reduce over arena elements [begin, end).
struct Bucket {
  int first = 0;
  int last = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct BucketOptions {
  std::int64_t element_bytes = 4;
  /// Cap of every bucket in bytes; 0: the default plan, one big head and a small tail.
  std::int64_t bucket_bytes = 0;
  /// Default plan: the last bucket, which nothing can hide, holds at most this much (at least one tensor)...
  std::int64_t tail_bytes = std::int64_t{1} << 20;
  /// ...and the buckets before it at most this much.
  std::int64_t head_bytes = std::int64_t{32} << 20;
  /// When known (lockstep-cost measures it; bucket_bytes is 0 then): the plan that is over first,
  /// comm/gradients/bucket_cost.hpp.
  CostModel all_reduce{};
  /// With all_reduce: how long backward takes, its gradients evenly over that time; 0: as long as one all-reduce of all
  /// gradients, where what the plan is like matters most.
  double backward_s = 0;
};

/// Cuts the ready order into buckets. Pure; the same arguments give the same plan on every rank. A tensor is never
/// split; a bucket closes before the tensor that would pass its cap (a larger tensor is a bucket of its own). The
/// default plan fills the tail from the end first, because only the last bucket is always exposed, then the head
/// from the front: few large buckets, then a small one. (PyTorch DDP after its rebuild puts the small one first.)
/// With a cost model all that is replaced by a search. ShapeError when the ranges are not contiguous in the arena and
/// ascending.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const GradientRange> gradients, const BucketOptions& options);

}  // namespace lockstep::comm

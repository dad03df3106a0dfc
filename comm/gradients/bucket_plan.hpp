#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::comm {

/// Place of a gradient in the arena. Lists of gradients are in ready order, the order in which backward completes them.
struct GradientRange {
  std::string name;
  std::int64_t begin = 0;   ///< index of the first element in the gradient arena
  std::int64_t end = 0;     ///< one past the gradient's last element, padding included
  int expected_writes = 1;  ///< writes in a step until the gradient is ready; more than one for tied weights
  // Shape of a gradient that is a matrix, row-major from its first element. 0 rows: the gradient is not a matrix.
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// A run of gradients [first, last). One all-reduce sums their arena elements [begin, end).
struct Bucket {
  int first = 0;
  int last = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct BucketOptions {
  std::int64_t element_bytes = 4;
  /// Largest size of every bucket in bytes; 0: the default plan (large buckets, then a small last one).
  std::int64_t bucket_bytes = 0;
  /// Default plan: largest size of the last bucket, whose all-reduce nothing can hide. It holds at least one tensor.
  std::int64_t tail_bytes = std::int64_t{1} << 20;
  /// Default plan: largest size of every other bucket in bytes.
  std::int64_t head_bytes = std::int64_t{32} << 20;
  /// Cost of an all-reduce, if known (lockstep-cost measures it). Selects the plan that ends first
  /// (comm/gradients/bucket_cost.hpp); bucket_bytes must be 0.
  CostModel all_reduce{};
  /// Used with all_reduce: the duration of backward, over which gradients become ready evenly. 0: the time of one
  /// all-reduce of all gradients, for which the plan matters most.
  double backward_s = 0;
  /// A plan that is already known: one past the last gradient of each bucket, ascending to the number of gradients.
  /// Then only element_bytes of the other options is checked and used.
  std::vector<int> ends{};
};

/// Cuts the gradients, in ready order, into buckets. Pure: the same arguments give the same plan on every rank. A
/// tensor is never split: a bucket closes before the tensor that would exceed the cap, and a tensor larger than the cap
/// is a bucket alone. The default plan first fills the last bucket from the end, because only the last bucket is always
/// exposed. Then it fills the others from the front: few large buckets, then a small one. (PyTorch DDP, after its
/// rebuild, puts the small bucket first.) With a cost model, a search replaces these rules. ShapeError unless the
/// ranges are contiguous in the arena and ascending; UsageError for `ends` that are no plan of these gradients.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const GradientRange> gradients, const BucketOptions& options);

}  // namespace lockstep::comm

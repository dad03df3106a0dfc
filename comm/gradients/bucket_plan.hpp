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
  int expected_writes = 1;  ///< number of writes in a step that make the gradient ready; above 1 for tied weights
  // Shape of a gradient that is a matrix, row-major from `begin` on. If rows is 0, the gradient is not a matrix.
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The gradients [first, last), which are the elements [begin, end) of the arena. One all-reduce sums all of them.
struct Bucket {
  int first = 0;
  int last = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct BucketOptions {
  std::int64_t element_bytes = 4;
  /// Largest size of every bucket in bytes. If 0, the default plan is made: large buckets, then a small last bucket.
  std::int64_t bucket_bytes = 0;
  /// Default plan: largest size in bytes of the last bucket, whose sum overlaps with no computation. The last bucket
  /// has at least one gradient, even if this gradient is larger.
  std::int64_t tail_bytes = std::int64_t{1} << 20;
  /// Default plan: largest size in bytes of every bucket but the last.
  std::int64_t head_bytes = std::int64_t{32} << 20;
  /// Cost of an all-reduce, if known (lockstep-cost measures it). If not empty, plan_buckets_by_cost() makes the
  /// plan (comm/gradients/bucket_cost.hpp), and bucket_bytes must be 0.
  CostModel all_reduce{};
  /// Duration of backward for `all_reduce`: gradients are assumed to become ready evenly over these seconds. If 0,
  /// backward is assumed to take as long as one all-reduce of all gradients: the choice of buckets matters most if both
  /// times are equal.
  double backward_s = 0;
  /// Ends of the buckets, if the plan is already known: for each bucket, one past the index of its last gradient. The
  /// ends ascend, and the last end is the number of gradients. If `ends` is not empty, plan_buckets() makes these
  /// buckets and only checks the other options.
  std::vector<int> ends{};
};

/// Cuts the gradients, in ready order, into buckets. The same arguments give the same plan on every rank. A gradient is
/// never split: a bucket ends before a gradient that would make it larger than its largest size, and a gradient above
/// this size is a bucket alone. With a cost model (BucketOptions::all_reduce), plan_buckets_by_cost() makes the plan.
///
/// The default plan has few large buckets, then a small last bucket, because the sum of the last bucket overlaps with
/// no computation. The last bucket is filled first, from the end of the list. Then the other buckets are filled from
/// the beginning of the list.
///
/// Throws ShapeError unless the ranges are contiguous in the arena and ascending. Throws UsageError for wrong options,
/// and for BucketOptions::ends that do not fit.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const GradientRange> gradients, const BucketOptions& options);

}  // namespace lockstep::comm

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/comm/gradients/bucket_cost.hpp>

namespace lockstep::comm {

/// What sums and backward cost each other where they share processors and memory. Both factors are at least 1 where
/// they do, and exactly 1 where nothing is shared.
struct OverlapModel {
  CostModel all_reduce;  ///< of the sum of a bucket, alone
  double slowdown = 1;   ///< a sum takes so many times as long beside backward
  double drag = 1;       ///< backward takes so many times as long beside a sum
};

/// A step's backward under a plan, in seconds from its beginning.
struct OverlapTimes {
  std::vector<double> ready_s;  ///< of each gradient, the last one is the end of backward
  double finish_s = 0;          ///< of the last sum
  [[nodiscard]] double exposed_s() const { return ready_s.empty() ? 0 : finish_s - ready_s.back(); }
};

/// ready_s: when gradients would be ready if nothing were summed meanwhile. Bucket k starts when its last gradient is
/// ready and bucket k - 1 has ended. With drag 1 the end is that of finish_time(). UsageError for factors that are not
/// finite or not above 0.
[[nodiscard]] OverlapTimes overlap_times(std::span<const Bucket> buckets, std::span<const double> ready_s,
                                         const OverlapModel& model, std::int64_t element_bytes);

/// A plan with an early end by overlap_times(), never later than that of one bucket. Where sums delay backward, the
/// ready times depend on the plan; so plan_buckets_by_cost() searches with those of the best plan so far, until it
/// finds no better one. Arguments and errors as there. Not a proof of the best: the search is exact for the ready times
/// of the round before.
[[nodiscard]] std::vector<Bucket> plan_buckets_by_overlap(std::span<const GradientRange> gradients,
                                                          std::span<const double> ready_s, const OverlapModel& model,
                                                          std::int64_t element_bytes);

}  // namespace lockstep::comm

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/comm/gradients/bucket_plan.hpp>

namespace lockstep::comm {

/// Returns the time at which each gradient is ready, in seconds from the beginning of backward, for callers that have
/// measured no times. Assumes that every element takes equally long: gradient i is ready at backward_s * (elements up
/// to the end of gradient i) / (all elements).
[[nodiscard]] std::vector<double> even_ready_times(std::span<const GradientRange> gradients, double backward_s);

/// Returns the time at which the last all-reduce of a plan ends, in seconds from the beginning of backward; 0 if the
/// plan has no buckets. Bucket k starts when its last gradient is ready and bucket k - 1 has ended, and takes
/// all_reduce.predict(bytes of bucket k) seconds. Assumes that communication and computation do not slow each other.
[[nodiscard]] double finish_time(std::span<const Bucket> buckets, std::span<const double> ready_s,
                                 const CostModel& all_reduce, std::int64_t element_bytes);

/// Returns a bucket plan whose finish_time() is nearly the earliest. The same arguments give the same plan on every
/// rank. The exposed communication is the time from the end of backward to finish_time(). In the returned plan it may
/// be a thousandth longer than in the plan with the earliest finish_time(). Among such plans, the function returns one
/// with the fewest buckets.
///
/// The search is dynamic programming over all plans, for any cost model. Let f(j) be the earliest time at which
/// gradients 0 .. j - 1 are reduced. f(j) is the minimum over i < j of this time: the end of a bucket of gradients
/// i .. j - 1 that starts at max(ready(j - 1), f(i)). A similar recursion backwards, over the latest times at which a
/// bucket may begin, finds the fewest buckets. The run time grows with (number of gradients)^2 * (number of buckets in
/// the plan).
///
/// MG-WFBP solves the same problem by a rule that merges gradients, for one alpha and one beta (Shi, Chu, Li, "MG-WFBP:
/// Efficient data communication for distributed synchronous SGD algorithms", INFOCOM 2019).
///
/// Throws ShapeError unless `ready_s` has one value for each gradient, ascending from at least 0. Throws DataError for
/// a model that check() refuses.
[[nodiscard]] std::vector<Bucket> plan_buckets_by_cost(std::span<const GradientRange> gradients,
                                                       std::span<const double> ready_s, const CostModel& all_reduce,
                                                       std::int64_t element_bytes);

}  // namespace lockstep::comm

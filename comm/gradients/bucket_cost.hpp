#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/comm/gradients/bucket_plan.hpp>

namespace lockstep::comm {

/// When each gradient is ready, in seconds from the beginning of backward, as if all elements took alike: gradient i at
/// backward_s * (elements up to its end) / (all elements). For those who know no better.
[[nodiscard]] std::vector<double> even_ready_times(std::span<const GradientRange> gradients, double backward_s);

/// When the all-reduces of a plan are over, in seconds from the beginning of backward: bucket k starts when its last
/// gradient is ready and bucket k - 1 is through, and takes all_reduce.predict(its bytes). Backward is taken to be no
/// slower for it. 0 for no buckets.
[[nodiscard]] double finish_time(std::span<const Bucket> buckets, std::span<const double> ready_s,
                                 const CostModel& all_reduce, std::int64_t element_bytes);

/// Of all plans with the earliest finish_time(), up to a thousandth of what is seen of communication after backward,
/// one with the fewest buckets. Pure; the same arguments give the same plan on every rank. What every bucket costs
/// once, alpha, speaks for few large buckets; that communication after backward is seen speaks for several and a small
/// last one.
///
/// The problem is that of MG-WFBP (Shi, Chu, Li, "MG-WFBP: Efficient data communication for distributed synchronous SGD
/// algorithms", INFOCOM 2019), which merges gradients by a rule for one alpha and one beta. Here all plans are searched
/// by dynamic programming, for any cost model. The earliest time at which gradients 0 .. j - 1 are reduced is f(j) =
/// min over i < j of max(ready(j - 1), f(i)) + T(bytes of i .. j - 1), as an earlier end of what comes before never
/// delays what comes after; the fewest buckets come from the same recursion backwards, over the latest times at which a
/// bucket may begin. Takes the square of the number of gradients per bucket of the plan.
///
/// ready_s ascends, one value per gradient, from 0 (ShapeError). DataError for a model that check() refuses.
[[nodiscard]] std::vector<Bucket> plan_buckets_by_cost(std::span<const GradientRange> gradients,
                                                       std::span<const double> ready_s, const CostModel& all_reduce,
                                                       std::int64_t element_bytes);

}  // namespace lockstep::comm

#include <lockstep/comm/gradients/bucket_plan.hpp>

#include <cmath>
#include <cstddef>

#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

void check(std::span<const GradientRange> gradients, const BucketOptions& options) {
  require<UsageError>(options.element_bytes > 0, "plan_buckets: element_bytes is ", options.element_bytes,
                      ", expected more than 0");
  require<UsageError>(options.bucket_bytes >= 0, "plan_buckets: bucket_bytes is ", options.bucket_bytes,
                      ", expected 0 or more");
  require<UsageError>(options.tail_bytes >= 0, "plan_buckets: tail_bytes is ", options.tail_bytes,
                      ", expected 0 or more");
  require<UsageError>(options.head_bytes > 0, "plan_buckets: head_bytes is ", options.head_bytes,
                      ", expected more than 0");
  require<UsageError>(options.all_reduce.empty() || options.bucket_bytes == 0, "plan_buckets: bucket_bytes is ",
                      options.bucket_bytes, " with a cost model, expected 0");
  require<UsageError>(std::isfinite(options.backward_s) && options.backward_s >= 0, "plan_buckets: backward_s is ",
                      options.backward_s, ", expected a time of at least 0");
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const GradientRange& range = gradients[i];
    require<ShapeError>(range.begin >= 0 && range.end >= range.begin, "plan_buckets: ", range.name, " is [",
                        range.begin, ", ", range.end, "), expected an ascending range");
    if (i > 0) {
      require<ShapeError>(range.begin == gradients[i - 1].end, "plan_buckets: ", range.name, " begins at element ",
                          range.begin, ", expected ", gradients[i - 1].end, ", the end of ", gradients[i - 1].name);
    }
  }
}

Bucket make_bucket(std::span<const GradientRange> gradients, int first, int last) {
  return {first, last, gradients[static_cast<std::size_t>(first)].begin,
          gradients[static_cast<std::size_t>(last) - 1].end};
}

/// Appends buckets of at most `cap` elements that cover gradients [0, last). A gradient of more than `cap` elements is
/// a bucket alone.
void fill_from_front(std::span<const GradientRange> gradients, int last, std::int64_t cap,
                     std::vector<Bucket>& buckets) {
  int first = 0;
  for (int i = 0; i < last; ++i) {
    const std::int64_t begin = gradients[static_cast<std::size_t>(first)].begin;
    if (i > first && gradients[static_cast<std::size_t>(i)].end - begin > cap) {
      buckets.push_back(make_bucket(gradients, first, i));
      first = i;
    }
  }
  if (first < last) {
    buckets.push_back(make_bucket(gradients, first, last));
  }
}

std::vector<Bucket> plan_of(std::span<const GradientRange> gradients, const std::vector<int>& ends) {
  std::vector<Bucket> buckets;
  const int count = static_cast<int>(gradients.size());
  int first = 0;
  for (const int last : ends) {
    require<UsageError>(last > first && last <= count, "plan_buckets: a bucket of the plan ends with gradient ", last,
                        ", expected ", first + 1, " to ", count);
    buckets.push_back(make_bucket(gradients, first, last));
    first = last;
  }
  require<UsageError>(first == count, "plan_buckets: the plan is of ", first, " gradients, expected ", count);
  return buckets;
}

}  // namespace

std::vector<Bucket> plan_buckets(std::span<const GradientRange> gradients, const BucketOptions& options) {
  check(gradients, options);
  std::vector<Bucket> buckets;
  const int count = static_cast<int>(gradients.size());
  if (count == 0) {
    return buckets;
  }
  if (!options.ends.empty()) {
    return plan_of(gradients, options.ends);
  }
  if (!options.all_reduce.empty()) {
    comm::check(options.all_reduce, "plan_buckets");
    const auto bytes = static_cast<double>((gradients.back().end - gradients[0].begin) * options.element_bytes);
    const double backward_s = options.backward_s > 0 ? options.backward_s : options.all_reduce.predict(bytes);
    return plan_buckets_by_cost(gradients, even_ready_times(gradients, backward_s), options.all_reduce,
                                options.element_bytes);
  }
  if (options.bucket_bytes > 0) {
    fill_from_front(gradients, count, options.bucket_bytes / options.element_bytes, buckets);
    return buckets;
  }
  int tail = count - 1;
  const std::int64_t tail_cap = options.tail_bytes / options.element_bytes;
  while (tail > 0 && gradients.back().end - gradients[static_cast<std::size_t>(tail) - 1].begin <= tail_cap) {
    --tail;
  }
  fill_from_front(gradients, tail, options.head_bytes / options.element_bytes, buckets);
  buckets.push_back(make_bucket(gradients, tail, count));
  return buckets;
}

}  // namespace lockstep::comm

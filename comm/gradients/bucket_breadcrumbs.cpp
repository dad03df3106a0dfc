#include <lockstep/comm/gradients/bucket_breadcrumbs.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>
#include <span>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::comm {

namespace {

/// Returns the number that the device copies to the host before the sum of `bucket`. After the sum, the device copies
/// this number + 1.
std::int32_t number_before(int bucket) {
  return 2 * bucket + 1;
}

std::string name_of(const std::vector<GradientRange>& gradients, const Bucket& bucket) {
  const std::string& first = gradients[static_cast<std::size_t>(bucket.first)].name;
  const std::string& last = gradients[static_cast<std::size_t>(bucket.last) - 1].name;
  return bucket.last - bucket.first > 1 ? concat(first, " to ", last) : first;
}

}  // namespace

BucketBreadcrumbs::BucketBreadcrumbs(Context& compute, Stream& comm, const std::vector<GradientRange>& gradients,
                                     const std::vector<Bucket>& buckets, int places)
    : context_(comm.device(), {.stream = comm.cuda_handle(), .memory = &compute.memory()}),
      host_memory_(comm.device()),
      host_stream_(Stream::host_inline()),
      steps_(static_cast<std::size_t>(std::max(places, 0))),
      idle_(context_.stream()) {
  require<UsageError>(places >= 1, "bucket breadcrumbs: places is ", places, ", expected at least 1");
  for (const Bucket& bucket : buckets) {
    names_.push_back(name_of(gradients, bucket));
  }
  std::vector<std::int32_t> numbers(2 * buckets.size() + 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Shape shape{static_cast<std::int64_t>(numbers.size())};
  numbers_ = Buffer(numbers.size() * sizeof(std::int32_t), compute);
  copy_now(compute, TensorView(std::span(numbers), shape),
           TensorView(numbers_.data(), DType::i32, compute.device(), shape));
  words_ = Buffer(steps_.size() * kAlignment, host_memory_, host_stream_);
  std::fill_n(words_.data(), words_.bytes(), std::byte{0});
}

std::int32_t* BucketBreadcrumbs::word(int place) const {
  return reinterpret_cast<std::int32_t*>(words_.data() + static_cast<std::size_t>(place) * kAlignment);
}

void BucketBreadcrumbs::before_sum(int bucket) {
  copy_number(number_before(bucket));
}

void BucketBreadcrumbs::after_sum(int bucket) {
  copy_number(number_before(bucket) + 1);
}

void BucketBreadcrumbs::copy_number(std::int32_t number) {
  const std::byte* from = numbers_.data() + static_cast<std::size_t>(number) * sizeof number;
  copy(context_, TensorView(const_cast<std::byte*>(from), DType::i32, context_.device(), Shape{1}),
       TensorView(word(place_), DType::i32, Device::cpu(), Shape{1}));
}

void BucketBreadcrumbs::begin(int place, std::int64_t step) noexcept {
  const std::lock_guard lock(mutex_);
  std::atomic_ref(*word(place)).store(0, std::memory_order_release);
  steps_[static_cast<std::size_t>(place)] = step;
}

void BucketBreadcrumbs::forget(int place) noexcept {
  begin(place, 0);
}

std::string BucketBreadcrumbs::text() const {
  const auto all = static_cast<std::int32_t>(2 * names_.size());
  std::int64_t step = 0;
  std::int32_t number = all;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t place = 0; place < steps_.size(); ++place) {
      const std::int32_t at = std::atomic_ref(*word(static_cast<int>(place))).load(std::memory_order_acquire);
      const std::int64_t here = steps_[place];
      const bool under_way = at < all;
      // Picks the oldest step that is under way. If no step is under way, picks the newest step.
      if (here != 0 && (step == 0 || (under_way ? number == all || here < step : number == all && here > step))) {
        step = here;
        number = at;
      }
    }
  }
  if (step == 0) {
    return {};
  }
  const std::string begin = concat("on the device step ", step, ": ");
  if (number >= all) {
    return concat(begin, "all ", names_.size(), names_.size() == 1 ? " bucket is" : " buckets are", " summed");
  }
  const auto bucket = static_cast<std::size_t>(number / 2);
  const std::string which = concat("bucket ", bucket + 1, " of ", names_.size());
  return number % 2 == 1 ? concat(begin, "summing ", which)
                         : concat(begin, "computing gradients of ", which, ", ", names_[bucket]);
}

}  // namespace lockstep::comm

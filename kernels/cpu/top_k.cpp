#include <lockstep/kernels/top_k.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/base/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 32768;  // logits that are worth a thread

/// How many of x (K) are larger than the one at the label: all of them when that one is NaN, as nothing is below it.
template <class T>
std::int64_t rank_of(const T* x, std::int64_t classes, std::int32_t label) {
  const Value<T> at_label = value_of(x[label]);
  std::int64_t above = 0;
  for (std::int64_t c = 0; c < label; ++c) {
    above += value_of(x[c]) < at_label ? 0 : 1;
  }
  for (std::int64_t c = label; c < classes; ++c) {
    above += value_of(x[c]) <= at_label ? 0 : 1;
  }
  return above;
}

}  // namespace

void top_k_correct(CpuContext& context, const TensorView& logits, const TensorView& labels, const TensorView& valid,
                   int k, const TensorView& result, const TensorView& /*workspace*/) {
  const std::int64_t samples = logits.shape[0];
  const std::int64_t classes = logits.shape[1];
  const auto* label = labels.as<std::int32_t>();  // (N)
  const std::int64_t counting =
      valid.given() ? std::clamp(*valid.as<std::int64_t>(), std::int64_t{0}, samples) : samples;
  std::atomic<std::int64_t> correct = 0;
  visit_element(logits.dtype, "top_k_correct", [&]<class T>(std::type_identity<T>) {
    const T* x = logits.as<T>();  // (N, K)
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / classes);
    parallel_ranges(context, counting, grain, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t found = 0;
      for (std::int64_t n = begin; n < end; ++n) {
        const bool known = label[n] >= 0 && label[n] < classes;
        found += known && rank_of(x + n * classes, classes, label[n]) < k ? 1 : 0;
      }
      correct += found;
    });
  });
  *result.as<double>() += static_cast<double>(correct.load());
}

}  // namespace lockstep::ops::backend

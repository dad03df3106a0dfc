#include <lockstep/kernels/top_k.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/prediction.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 32768;  // number of logits that justify another thread
constexpr std::int64_t kBlock = 4096;   // number of samples whose outcomes are kept on the stack, to be summed in order

}  // namespace

void top_k_correct(CpuContext& context, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                   const TensorView& valid, int k, const TensorView& result, const TensorView& /*workspace*/) {
  const std::int64_t samples = logits.shape[0];
  const std::int64_t classes = logits.shape[1];
  const auto* label = labels.as<std::int32_t>();  // shape (N)
  const std::int64_t counting =
      valid.given() ? std::clamp(*valid.as<std::int64_t>(), std::int64_t{0}, samples) : samples;
  double correct = 0;
  visit_element(logits.dtype, "top_k_correct", [&]<class T>(std::type_identity<T>) {
    const T* x = logits.as<T>();  // shape (N, K)
    const auto* weight = weights.given() ? weights.as<Value<T>>() : nullptr;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / classes);
    std::array<bool, kBlock> found;
    for (std::int64_t first = 0; first < counting; first += kBlock) {
      const std::int64_t count = std::min(kBlock, counting - first);
      parallel_ranges(context, count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t n = first + i;
          const auto at = [row = x + n * classes](std::int64_t c) { return value_of(row[c]); };
          found[static_cast<std::size_t>(i)] =
              label[n] >= 0 && label[n] < classes && rank_of(classes, label[n], at) < k;
        }
      });
      for (std::int64_t i = 0; i < count; ++i) {
        if (found[static_cast<std::size_t>(i)]) {
          correct += weight == nullptr ? 1 : static_cast<double>(weight[first + i]);
        }
      }
    }
  });
  *result.as<double>() += correct;
}

}  // namespace lockstep::ops::backend

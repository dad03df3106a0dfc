#include <lockstep/kernels/softmax_cross_entropy.hpp>

#include <algorithm>
#include <array>
#include <cmath>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/prediction.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kBlock = 256;           // number of positions whose losses stay on the stack for an ordered sum
constexpr std::int64_t kGrainElements = 8192;  // number of logits that justify another thread

/// The numbers that one position adds to the batch's metrics.
struct PositionResult {
  double loss = 0;
  double correct = 0;
  double bad_labels = 0;
};

/// Computes loss and gradient of one row, where s is `smoothing` and K is `classes`:
///   loss = log(sum exp(x - max)) - (1 - s) (x[label] - max) - s / K sum(x - max)
/// d may be x or null. If T is Value<T>, d temporarily holds the exponentials. Otherwise storing the exponentials in d
/// would round them, so they are computed twice.
template <class T>
PositionResult one_position(const T* x, std::int64_t classes, std::int32_t label, double smoothing, double weight,
                            Value<T> scale, T* d) {
  using V = Value<T>;
  const auto best = predict(classes, [x](std::int64_t k) { return value_of(x[k]); });
  const V largest = best.largest;
  const auto at_label = static_cast<double>(value_of(x[label]) - largest);  // x[label] is read before d overwrites x
  double total = 0;
  double shifts = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const V shifted = value_of(x[k]) - largest;
    const V e = std::exp(shifted);
    total += static_cast<double>(e);
    shifts += static_cast<double>(shifted);
    if constexpr (std::is_same_v<T, V>) {
      if (d != nullptr) {
        d[k] = e;
      }
    }
  }
  if (d != nullptr) {
    const auto inverse = static_cast<V>(1 / total);
    const auto spread = static_cast<V>(smoothing / static_cast<double>(classes));
    const auto peak = static_cast<V>(1 - smoothing);
    for (std::int64_t k = 0; k < classes; ++k) {
      const V target = k == label ? peak + spread : spread;
      const V e = std::is_same_v<T, V> ? value_of(d[k]) : std::exp(value_of(x[k]) - largest);
      d[k] = T((e * inverse - target) * scale);
    }
  }
  double loss = std::log(total) - (1 - smoothing) * at_label;
  if (smoothing > 0) {  // without smoothing a logit of -inf would give 0 * inf
    loss -= smoothing / static_cast<double>(classes) * shifts;
  }
  return {weight * loss, best.defined && best.index == label ? weight : 0};
}

template <class T>
void run(const CpuContext& context, const TensorView& logits, const TensorView& labels, const TensorView& weights,
         const TensorView& valid, const TensorView& scale, double smoothing, const TensorView& dlogits,
         const TensorView& metrics) {
  const std::int64_t samples = logits.shape[0];
  const std::int64_t classes = logits.shape.back();
  const std::int64_t rows = logits.numel() / classes;
  const std::int64_t positions = rows == 0 ? 1 : rows / samples;  // number of positions of a sample
  const T* x = logits.as<T>();                                    // shape (N * P, K)
  T* d = dlogits.given() ? dlogits.as<T>() : nullptr;             // shape (N * P, K)
  const std::int32_t* label = labels.as<std::int32_t>();
  const auto* weight = weights.given() ? weights.as<Value<T>>() : nullptr;  // one number for every `alike` positions
  const std::int64_t alike = weights.shape == labels.shape ? 1 : positions;
  const std::int64_t counting =
      positions * (valid.given() ? std::clamp(*valid.as<std::int64_t>(), std::int64_t{0}, samples) : samples);
  const Value<T> factor = (scale.given() ? *scale.as<Value<T>>() : 1) / static_cast<Value<T>>(positions);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / classes);
  double loss = 0;
  double correct = 0;
  double bad_labels = 0;
  std::array<PositionResult, kBlock> results;
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    const std::int64_t count = std::min(kBlock, rows - first);
    parallel_ranges(context, count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = first + i;
        T* row = d == nullptr ? nullptr : d + n * classes;
        const Value<T> own = weight == nullptr ? Value<T>{1} : weight[n / alike];
        const bool takes_part = n < counting && own != 0;
        const bool known = label[n] >= 0 && label[n] < classes;
        PositionResult& result = results[static_cast<std::size_t>(i)];
        if (takes_part && known) {
          result =
              one_position(x + n * classes, classes, label[n], smoothing, static_cast<double>(own), factor * own, row);
        } else {
          result = {.bad_labels = takes_part ? 1.0 : 0.0};
          if (row != nullptr) {
            std::fill(row, row + classes, T{0});
          }
        }
      }
    });
    for (std::int64_t i = 0; i < std::min(count, counting - first); ++i) {
      const PositionResult& result = results[static_cast<std::size_t>(i)];
      loss += result.loss;
      correct += result.correct;
      bad_labels += result.bad_labels;
    }
  }
  double* out = metrics.as<double>();
  out[0] += loss / static_cast<double>(positions);
  out[1] += correct / static_cast<double>(positions);
  out[2] += bad_labels;
}

}  // namespace

void softmax_cross_entropy(CpuContext& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& weights, const TensorView& valid, const TensorView& scale,
                           double smoothing, const TensorView& dlogits, const TensorView& metrics,
                           const TensorView& /*workspace*/) {
  visit_element(logits.dtype, "softmax_cross_entropy", [&]<class T>(std::type_identity<T>) {
    run<T>(context, logits, labels, weights, valid, scale, smoothing, dlogits, metrics);
  });
}

}  // namespace lockstep::ops::backend

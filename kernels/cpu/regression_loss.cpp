#include <lockstep/kernels/regression_loss.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <lockstep/kernels/cpu/chunk_sum.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops::backend {
namespace {

template <RegressionLoss kKind, class T>
double loss_of(T difference, double delta) {
  const auto d = static_cast<double>(difference);
  if constexpr (kKind == RegressionLoss::mse) {
    return d * d;
  } else {
    const double size = std::abs(d);
    if constexpr (kKind == RegressionLoss::l1) {
      return size;
    } else {
      return size <= delta ? 0.5 * d * d : delta * (size - 0.5 * delta);
    }
  }
}

/// Returns the derivative of the loss at d. For a NaN the result is NaN.
template <RegressionLoss kKind, class T>
T slope_of(T d, T delta) {
  if constexpr (kKind == RegressionLoss::mse) {
    return 2 * d;
  } else if constexpr (kKind == RegressionLoss::l1) {
    return d > 0 ? T{1} : (d < 0 ? T{-1} : d);
  } else {
    return d > delta ? delta : (d < -delta ? -delta : d);
  }
}

/// Returns the sum of the losses of elements [0, counted), and writes the gradient of all `count` elements. prediction,
/// target and gradient have `count` elements; gradient may be null or prediction. weights has one number for every
/// `alike` consecutive elements, or is null.
template <RegressionLoss kKind, class T>
double run(const CpuContext& context, const T* prediction, const T* target, const Value<T>* weights, std::int64_t alike,
           std::int64_t count, std::int64_t counted, double delta, Value<T> factor, T* gradient, double* partial) {
  using V = Value<T>;
  const auto element = [=](std::int64_t i, V weight) {
    const V difference = value_of(prediction[i]) - value_of(target[i]);
    const bool counts = weight != 0;
    if (gradient != nullptr) {
      const V slope = slope_of<kKind>(difference, static_cast<V>(delta)) * (factor * weight);
      gradient[i] = counts ? T(slope) : T{0};
    }
    return counts ? static_cast<double>(weight) * loss_of<kKind>(difference, delta) : 0.0;
  };
  return chunk_sum(context, count, kSumChunk, partial, [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t middle = std::clamp(counted, begin, end);
    double sum = 0;
    if (weights == nullptr) {
      sum = lane_sum(begin, middle, [=](std::int64_t i) { return element(i, V{1}); });
    } else if (alike == 1) {
      sum = lane_sum(begin, middle, [=](std::int64_t i) { return element(i, weights[i]); });
    } else {
      for (std::int64_t first = begin; first < middle;) {
        const std::int64_t sample = first / alike;
        const std::int64_t last = std::min((sample + 1) * alike, middle);
        sum += lane_sum(first, last, [=](std::int64_t i) { return element(i, weights[sample]); });
        first = last;
      }
    }
    if (gradient != nullptr) {
      std::fill(gradient + middle, gradient + end, T{0});
    }
    return sum;
  });
}

}  // namespace

void regression_loss(CpuContext& context, const RegressionLossOptions& options, const TensorView& prediction,
                     const TensorView& target, const TensorView& weights, const TensorView& valid,
                     const TensorView& scale, const TensorView& dprediction, const TensorView& metrics,
                     const TensorView& workspace) {
  const std::int64_t samples = prediction.shape[0];
  if (samples == 0) {
    return;
  }
  const std::int64_t count = prediction.numel();
  const std::int64_t features = count / samples;
  const std::int64_t counting =
      valid.given() ? std::clamp(*valid.as<std::int64_t>(), std::int64_t{0}, samples) : samples;
  visit_element(prediction.dtype, "regression_loss", [&]<class T>(std::type_identity<T>) {
    const double step = scale.given() ? static_cast<double>(*scale.as<Value<T>>()) : 1.0;
    const auto factor = static_cast<Value<T>>(step / static_cast<double>(features));
    const auto call = [&]<RegressionLoss kKind>(std::integral_constant<RegressionLoss, kKind>) {
      return run<kKind>(context, prediction.as<T>(), target.as<T>(), weights.given() ? weights.as<Value<T>>() : nullptr,
                        weights.shape == prediction.shape ? 1 : features, count, counting * features, options.delta,
                        factor, dprediction.given() ? dprediction.as<T>() : nullptr,
                        static_cast<double*>(workspace.data));
    };
    *metrics.as<double>() += visit_kind(options.kind, call) / static_cast<double>(features);
  });
}

}  // namespace lockstep::ops::backend

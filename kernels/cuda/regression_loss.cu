// Sums a loss between prediction and target (N, F), with or without weights. The same pass computes the gradient, so
// that prediction and target are read only once. chunk_sum.hpp divides the elements: a block of 256 threads takes
// chunks of 16384 elements, a thread takes pieces of 16 bytes. A thread adds up the losses of its pieces in f64 and
// writes their gradient. A second launch joins the sums of the chunks in order. The kind of loss, and whether there are
// weights, are template arguments.
// The kernel reads prediction and target and writes the gradient: 12 bytes per element in f32 and 6 in 16 bits. One
// weight per element adds 4 bytes. Bound by memory bandwidth if f64 arithmetic keeps up: one or two f64 operations per
// element for mse, a few more for huber.

#include <lockstep/kernels/cuda/chunk_sum.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/regression_loss.hpp>

namespace lockstep::ops::backend {
namespace {

/// The term for chunk_sum(): adds the losses of a piece to the sum and writes the piece's gradient. prediction, target,
/// gradient: (N, F); gradient may be null, or may be prediction. weights: one number for every `alike` consecutive
/// elements, only read with kWeighted. valid, scale: scalars or null.
template <class T, RegressionLoss kKind, bool kWeighted>
struct Loss {
  const T* prediction;
  const T* target;
  const float* weights;
  std::int64_t alike;
  const std::int64_t* valid;
  const float* scale;
  T* gradient;
  std::int64_t samples;
  std::int64_t features;
  double delta;
  std::int64_t counted = 0;  ///< the loss sums only the first `counted` elements
  float factor = 0;

  static constexpr int kUnroll = kWeighted ? 1 : 2;

  __device__ void start() {
    const std::int64_t rows = valid == nullptr || *valid > samples ? samples : *valid;
    counted = rows < 0 ? 0 : rows * features;
    const double step = scale == nullptr ? 1.0 : static_cast<double>(*scale);
    factor = static_cast<float>(step / static_cast<double>(features));
  }

  __device__ void add(float difference, float weight, double& sum) const {
    const auto d = static_cast<double>(difference);
    const auto w = static_cast<double>(weight);
    if constexpr (kKind == RegressionLoss::mse) {
      sum = fma(kWeighted ? w * d : d, d, sum);
    } else {
      const double size = fabs(d);
      double loss = size;
      if constexpr (kKind == RegressionLoss::huber) {
        loss = size <= delta ? 0.5 * d * d : delta * (size - 0.5 * delta);
      }
      sum += kWeighted ? w * loss : loss;
    }
  }

  /// Returns the weights of the elements [first, first + kCount). One division is enough for all kCount elements.
  template <int kCount>
  __device__ gpu::Pack<float, kCount> weights_of(std::int64_t first) const {
    gpu::Pack<float, kCount> own;
    if (kWeighted && alike == 1) {
      return gpu::load<kCount>(weights + first);
    }
    std::int64_t sample = kWeighted ? first / alike : 0;
    std::int64_t rest = kWeighted ? (sample + 1) * alike - first : 0;  // elements from `first` to the sample's end
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      own.at[j] = 1.0F;
      if (kWeighted) {
        own.at[j] = first + j >= counted ? 0.0F : weights[sample];
        if (--rest == 0) {
          ++sample;
          rest = alike;
        }
      }
    }
    return own;
  }

  /// Returns the derivative of the loss at the difference `d`, or NaN if `d` is NaN: then all comparisons are false.
  __device__ float slope(float d) const {
    if constexpr (kKind == RegressionLoss::mse) {
      return 2.0F * d;
    } else if constexpr (kKind == RegressionLoss::l1) {
      return d > 0.0F ? 1.0F : (d < 0.0F ? -1.0F : d);
    } else {
      const auto bound = static_cast<float>(delta);
      return d > bound ? bound : (d < -bound ? -bound : d);
    }
  }

  template <int kCount>
  __device__ void operator()(std::integral_constant<int, kCount>, std::int64_t first, double& sum) const {
    gpu::Pack<T, kCount> slopes;
    if (first < counted) {
      const auto predictions = gpu::load<kCount>(prediction + first);
      const auto targets = gpu::load<kCount>(target + first);
      const auto own = weights_of<kCount>(first);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const bool counts = first + j < counted && !(kWeighted && own.at[j] == 0.0F);
        const float d = counts ? gpu::to_float(predictions.at[j]) - gpu::to_float(targets.at[j]) : 0.0F;
        add(d, counts ? own.at[j] : 0.0F, sum);
        slopes.at[j] = gpu::from_float<T>(counts ? slope(d) * (kWeighted ? factor * own.at[j] : factor) : 0.0F);
      }
    } else {  // all elements are padding, so their inputs are not read
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        slopes.at[j] = gpu::from_float<T>(0.0F);
      }
    }
    if (gradient != nullptr) {
      gpu::store(gradient + first, slopes);
    }
  }
};

}  // namespace

void regression_loss(CudaContext& context, const RegressionLossOptions& options, const TensorView& prediction,
                     const TensorView& target, const TensorView& weights, const TensorView& valid,
                     const TensorView& scale, const TensorView& dprediction, const TensorView& metrics,
                     const TensorView& workspace) {
  const std::int64_t samples = prediction.shape[0];
  if (samples == 0) {
    return;
  }
  const std::int64_t features = prediction.numel() / samples;
  gpu::visit_element(prediction.dtype, "regression_loss", [&]<class T>(std::type_identity<T>) {
    visit_kind(options.kind, [&]<RegressionLoss kKind>(std::integral_constant<RegressionLoss, kKind>) {
      const auto run = [&]<bool kWeighted>(std::bool_constant<kWeighted>) {
        const Loss<T, kKind, kWeighted> loss{gpu::data<T>(prediction),
                                             gpu::data<T>(target),
                                             gpu::data<float>(weights),
                                             weights.shape == prediction.shape ? 1 : features,
                                             gpu::data<std::int64_t>(valid),
                                             gpu::data<float>(scale),
                                             gpu::data<T>(dprediction),
                                             samples,
                                             features,
                                             options.delta};
        const bool aligned = gpu::aligned_to_vectors(loss.prediction, loss.target, loss.gradient) &&
                             (loss.alike != 1 || gpu::aligned_to_vectors(loss.weights));
        gpu::chunk_sum<kSumChunk, T>(context, loss, samples * features, aligned, gpu::data<double>(workspace),
                                     static_cast<double>(features), true, gpu::data<double>(metrics));
      };
      if (weights.given()) {
        run(std::true_type{});
      } else {
        run(std::false_type{});
      }
    });
  });
}

}  // namespace lockstep::ops::backend

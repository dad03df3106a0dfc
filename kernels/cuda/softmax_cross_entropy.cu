// Cross entropy of logits (N * P, K) with labels (N * P). Computes the loss, the outcome (PositionLoss::outcome: right,
// wrong, ...) and the gradient of each position, and sums losses and outcomes over the positions.
//
// rows_kernel: each warp takes one row, and a block of 128 threads takes 4 rows. So small batches still reach many
// multiprocessors, and the sums of a row need shuffles only. A warp goes over its row three times: maximum, sum of
// exponentials, gradient. The row comes from memory the first time, then from caches (a row of 1000 classes has 2 or 4
// KB). metrics_kernel: one block of 256 threads sums over the positions in f64 in a fixed order.
//
// Memory bandwidth bounds rows_kernel. Per element it reads a logit and writes a gradient: 8 bytes in f32, 4 in 16
// bits. Per position it reads a label (4 bytes) and writes a PositionLoss (8 bytes). metrics_kernel reads the 8 bytes
// of each PositionLoss; the latency of its launch bounds it.

#include <lockstep/kernels/cuda/rows.hpp>
#include <lockstep/kernels/softmax_cross_entropy.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kRows = 4;  // number of warps of a block; each takes a row: so small batches reach many multiprocessors
constexpr int kBlock = kRows * gpu::kWarp;
constexpr int kJoinBlock = 256;

/// Computes loss and gradient of each row. A warp takes a row, and finds its largest logit and the sum of exponentials.
/// exp() is computed twice, so that a 16-bit gradient is as exact in place as in separate memory. logits, dlogits: (N *
/// P, K), dlogits may be null; labels, losses: (N * P). weights: one number for every `alike` consecutive positions, or
/// null; valid, scale: scalars or null.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock)
    rows_kernel(const T* logits, const std::int32_t* labels, const float* weights, std::int64_t alike,
                const std::int64_t* valid, const float* scale, std::int64_t samples, std::int64_t positions,
                std::int64_t classes, float peak, float spread, T* dlogits, PositionLoss* losses) {
  gpu::wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / gpu::kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kRows;
  const std::int64_t rows = samples * positions;
  const std::int64_t given = valid != nullptr ? *valid : samples;
  const std::int64_t counting = given <= 0 ? 0 : (given < samples ? given * positions : rows);
  const float share = (scale != nullptr ? *scale : 1.0F) / static_cast<float>(positions);
  for (std::int64_t row = warp; row < rows; row += warps) {
    const T* x = logits + row * classes;
    const std::int32_t label = labels[row];
    const bool known = label >= 0 && label < classes;
    const float weight = weights != nullptr ? weights[row / alike] : 1.0F;
    const bool counts = row < counting && weight != 0.0F;
    const bool takes_part = counts && known;
    const float factor = share * weight;
    float largest = -INFINITY;
    float total = 0;
    PositionLoss result{0.0F, counts ? 3 : 0};
    if (takes_part) {
      gpu::visit_row<gpu::kWarp, kCount>(
          classes, lane,
          [&](std::int64_t, float value) {
            largest = value > largest ? value : largest;  // a NaN or infinity makes the total NaN
          },
          x);
      largest = gpu::warp_max(largest);
      const float at_label = gpu::to_float(x[label]) - largest;
      float shifts = 0;
      bool earlier = false;  // true if a logit before the label equals the largest logit
      gpu::visit_row<gpu::kWarp, kCount>(
          classes, lane,
          [&](std::int64_t k, float value) {
            const float shifted = value - largest;
            total += expf(shifted);
            shifts += shifted;
            earlier = earlier || (k < label && shifted == 0.0F);
          },
          x);
      total = gpu::warp_sum(total);
      shifts = gpu::warp_sum(shifts);
      const bool right = total == total && at_label == 0.0F && __any_sync(gpu::kAllLanes, earlier) == 0;
      result.loss = logf(total) - peak * at_label;
      if (spread > 0.0F) {  // if spread is 0, a logit of -inf would give 0 * inf, NaN
        result.loss -= spread * shifts;
      }
      result.outcome = right ? 2 : 1;
    }
    if (lane == 0) {
      losses[row] = result;
    }
    if (dlogits != nullptr) {
      __syncwarp();  // waits until all lanes have read the logit at the label, which dlogits may overwrite
      const float inverse = 1.0F / total;
      gpu::transform_row<gpu::kWarp, kCount>(
          classes, lane,
          [=](std::int64_t k, float value) {
            const float target = k == label ? peak + spread : spread;
            return takes_part ? (expf(value - largest) * inverse - target) * factor : 0.0F;
          },
          dlogits + row * classes, x);
    }
  }
}

/// Adds the sums over all positions to `metrics` (3). One block: a thread sums every 256th position in f64; then the
/// sums of the threads are joined in order. losses: (N * P), weights: one number for every `alike` consecutive
/// positions, or null.
__global__ void __launch_bounds__(kJoinBlock)
    metrics_kernel(const PositionLoss* losses, const float* weights, std::int64_t alike, std::int64_t rows,
                   double positions, double* metrics) {
  gpu::wait_for_earlier();
  double loss = 0;
  double right = 0;
  double bad = 0;
  // In the loop `place` is i / alike and `rest` is i % alike, without a division per position.
  std::int64_t place = threadIdx.x / alike;
  std::int64_t rest = threadIdx.x - place * alike;
  const std::int64_t places = kJoinBlock / alike;
  const std::int64_t more = kJoinBlock - places * alike;
  for (std::int64_t i = threadIdx.x; i < rows; i += kJoinBlock) {
    const PositionLoss one = losses[i];
    const bool known = one.outcome == 1 || one.outcome == 2;
    const double weight = weights != nullptr && known ? static_cast<double>(weights[place]) : 1.0;
    place += places;
    rest += more;
    if (rest >= alike) {
      rest -= alike;
      ++place;
    }
    loss += weight * static_cast<double>(one.loss);
    right += one.outcome == 2 ? weight : 0.0;
    bad += one.outcome == 3 ? 1.0 : 0.0;
  }
  loss = gpu::block_sum<kJoinBlock>(loss);
  right = gpu::block_sum<kJoinBlock>(right);
  bad = gpu::block_sum<kJoinBlock>(bad);
  if (threadIdx.x == 0) {
    metrics[0] += loss / positions;
    metrics[1] += right / positions;
    metrics[2] += bad;
  }
}

}  // namespace

void softmax_cross_entropy(CudaContext& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& weights, const TensorView& valid, const TensorView& scale,
                           double smoothing, const TensorView& dlogits, const TensorView& metrics,
                           const TensorView& workspace) {
  const std::int64_t samples = logits.shape[0];
  const std::int64_t classes = logits.shape.back();
  const std::int64_t rows = logits.numel() / classes;
  if (rows == 0) {
    return;
  }
  const std::int64_t positions = rows / samples;
  const std::int64_t alike = weights.shape == labels.shape ? 1 : positions;
  auto* losses = static_cast<PositionLoss*>(workspace.data);
  const auto peak = static_cast<float>(1 - smoothing);
  const auto spread = static_cast<float>(smoothing / static_cast<double>(classes));
  gpu::visit_element(logits.dtype, "softmax_cross_entropy", [&]<class T>(std::type_identity<T>) {
    const auto* x = static_cast<const T*>(logits.data);
    auto* d = static_cast<T*>(dlogits.data);  // null if dlogits is not given
    gpu::visit_pieces<T>(gpu::aligned_to_vectors(x, d), classes, [&]<int kCount>(std::integral_constant<int, kCount>) {
      gpu::launch(rows_kernel<T, kCount>, dim3(gpu::blocks_for(rows, kRows)), dim3(kBlock), 0, context.stream(), x,
                  static_cast<const std::int32_t*>(labels.data), static_cast<const float*>(weights.data), alike,
                  static_cast<const std::int64_t*>(valid.data), static_cast<const float*>(scale.data), samples,
                  positions, classes, peak, spread, d, losses);
    });
  });
  gpu::launch(metrics_kernel, dim3(1), dim3(kJoinBlock), 0, context.stream(), losses,
              static_cast<const float*>(weights.data), alike, rows, static_cast<double>(positions),
              metrics.as<double>());
}

}  // namespace lockstep::ops::backend

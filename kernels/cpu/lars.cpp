#include <lockstep/kernels/lars.hpp>

#include <cmath>

#include <lockstep/kernels/cpu/arena.hpp>
#include <lockstep/kernels/cpu/chunk_sum.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops::backend {
namespace {

/// Norm of elements [begin, begin + count) of a view. partial: one number a chunk.
double norm(const CpuContext& context, const TensorView& x, std::int64_t begin, std::int64_t count, double* partial) {
  double sum = 0;
  visit_dtype(x.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {
      using Value = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const T* from = x.as<T>() + begin;
      sum = chunk_sum(context, count, kLarsChunk, partial, [=](std::int64_t first, std::int64_t last) {
        return lane_sum(first, last, [=](std::int64_t i) {
          const auto value = static_cast<double>(static_cast<Value>(from[i]));
          return value * value;
        });
      });
    }
  });
  return std::sqrt(sum);
}

}  // namespace

void lars_update(CpuContext& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace) {
  if (update.segments.empty() || skips(update)) {
    return;
  }
  double* ratios = static_cast<double*>(workspace.data);
  double* partial = ratios + update.segments.size();
  const std::int64_t n = update.parameters.numel();
  double factor = 1;
  visit_compute(update.parameters.dtype, "lars_update",
                [&]<class T>(std::type_identity<T>) { factor = static_cast<double>(factor_of<T>(update)); });
  for (std::size_t i = 0; i < update.segments.size(); ++i) {
    const ArenaSegment& segment = update.segments[i];
    const auto [begin, end] = piece_of(segment, update.begin, n);
    ratios[i] = 1;
    if (begin >= end || !segment.trainable || !segment.adapts) {
      continue;
    }
    const double p = norm(context, update.parameters, begin, segment.count, partial);
    const double g = norm(context, update.gradients, begin, segment.count, partial) * std::abs(factor);
    if (p > 0 && g > 0) {
      ratios[i] = options.trust_coefficient * p / (g + segment.weight_decay * p + options.epsilon);
    }
  }
  momentum_update(context, update, {options.momentum, options.nesterov}, velocity, ratios);
}

}  // namespace lockstep::ops::backend

#include <lockstep/kernels/lars.hpp>

#include <cmath>

#include <lockstep/kernels/cpu/arena.hpp>
#include <lockstep/kernels/cpu/chunk_sum.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops::backend {
namespace {

/// Returns the sum of the squares of elements [begin, begin + count) of x. `partial` needs room for one number per
/// chunk of kLarsChunk elements.
double squares_of(const CpuContext& context, const TensorView& x, std::int64_t begin, std::int64_t count,
                  double* partial) {
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
  return sum;
}

}  // namespace

void lars_update(CpuContext& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace, const TensorView& squares) {
  if (update.segments.empty() || skips(update)) {
    return;
  }
  double* ratios = static_cast<double*>(workspace.data);
  double* partial = ratios + update.segments.size();
  const std::int64_t n = update.parameters.numel();
  double factor = 1;
  visit_compute(update.parameters.dtype, "lars_update",
                [&]<class T>(std::type_identity<T>) { factor = static_cast<double>(factor_of<T>(update)); });
  const double* row = squares.given() ? squares.as<double>() : nullptr;
  for (std::size_t i = 0; i < update.segments.size(); ++i) {
    const ArenaSegment& segment = update.segments[i];
    const double* const given = row;
    row += row != nullptr && segment.trainable && segment.count > 0 ? 2 : 0;
    const auto [begin, end] = piece_of(segment, update.begin, n);
    ratios[i] = 1;
    if (begin >= end || !segment.trainable || !segment.adapts) {
      continue;
    }
    const auto norm = [&, first = begin](const TensorView& x, int column) {
      return std::sqrt(given != nullptr ? given[column] : squares_of(context, x, first, segment.count, partial));
    };
    const double p = norm(update.parameters, 0);
    const double g = norm(update.gradients, 1) * std::abs(factor);
    if (p > 0 && g > 0) {
      ratios[i] = options.trust_coefficient * p / (g + segment.weight_decay * p + options.epsilon);
    }
  }
  momentum_update(context, update, {options.momentum, options.nesterov}, velocity, ratios);
}

void lars_squares(CpuContext& context, const ArenaUpdate& update, const TensorView& squares,
                  const TensorView& workspace) {
  auto* partial = static_cast<double*>(workspace.data);
  double* row = squares.as<double>();
  for (const ArenaSegment& segment : update.segments) {
    if (!segment.trainable || segment.count == 0) {
      continue;
    }
    const auto [begin, end] = piece_of(segment, update.begin, update.parameters.numel());
    if (begin < end) {
      row[0] += squares_of(context, update.parameters, begin, end - begin, partial);
      row[1] += squares_of(context, update.gradients, begin, end - begin, partial);
    }
    row += 2;
  }
}

}  // namespace lockstep::ops::backend

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {

inline constexpr std::int64_t kArenaGrain = 16384;

/// Returns true when `update.skip` says that the update must change nothing.
[[nodiscard]] inline bool skips(const ArenaUpdate& update) {
  return update.skip.given() && *update.skip.as<std::int32_t>() != 0;
}

template <class T>
[[nodiscard]] T factor_of(const ArenaUpdate& update) {
  return update.factor.given() ? *update.factor.as<T>() : T{1};
}

/// Sets scaled[i] = factor * gradients[first + i], rounded to T, for any type of gradients; then clips scaled[i] by
/// value.
template <class T>
void scale_gradients(const ArenaUpdate& update, T factor, std::int64_t first, std::int64_t count, T* scaled) {
  const auto from = [&]<class G>(const G* gradients) {
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<G, T>) {
        scaled[i] = factor * gradients[first + i];
      } else {
        scaled[i] = factor * static_cast<T>(static_cast<float>(gradients[first + i]));
      }
    }
  };
  switch (update.gradients.dtype) {
    case DType::bf16:
      from(update.gradients.as<BFloat16>());
      break;
    case DType::f16:
      from(update.gradients.as<Float16>());
      break;
    default:
      from(update.gradients.as<T>());
  }
  if (const T limit = static_cast<T>(update.clip_value); limit > 0) {
    for (std::int64_t i = 0; i < count; ++i) {
      scaled[i] = std::clamp(scaled[i], -limit, limit);  // NaN compares false and stays
    }
  }
}

template <class T, class H>
void copy_parameters(const T* parameters, std::int64_t count, H* copy) {
  for (std::int64_t i = 0; i < count; ++i) {
    copy[i] = H(static_cast<float>(parameters[i]));
  }
}

/// Calls rule(segment, learning_rate, first, count, parameters, gradients) for runs of elements. Each run is inside one
/// trainable segment.
///
///   first                    index of the run's first element in the views of `update`
///   parameters, gradients    pointers (T*, const T*) to the run; gradients are multiplied by factor and clipped
///   learning_rate            double, the learning rate multiplied by the segment's learning_rate_scale
///
/// After each call of rule, the run's new parameters are copied to update.copy if that view is given. If skips(update)
/// is true, update_arena() does nothing.
template <class T, class Rule>
void update_arena(const CpuContext& context, const ArenaUpdate& update, Rule rule) {
  constexpr std::int64_t kRun = 1024;  // number of gradients that are converted or scaled at a time, on the stack
  if (skips(update)) {
    return;
  }
  const std::int64_t n = update.parameters.numel();
  const double rate = *update.learning_rate.as<double>();
  const T factor = factor_of<T>(update);
  const bool as_they_are = update.gradients.dtype == dtype_of<T> && !update.factor.given() && update.clip_value == 0;
  T* parameters = update.parameters.as<T>();
  parallel_ranges(context, n, kArenaGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<T, static_cast<std::size_t>(kRun)> scaled;
    const auto& segments = update.segments;
    auto s = std::partition_point(segments.begin(), segments.end(), [&](const ArenaSegment& segment) {
      return segment.offset + segment.count <= update.begin + begin;
    });
    for (; s != segments.end() && s->offset < update.begin + end; ++s) {
      if (!s->trainable) {
        continue;
      }
      const ArenaPiece piece = piece_of(*s, update.begin, n);
      const std::int64_t last = std::min(piece.end, end);
      for (std::int64_t first = std::max(piece.begin, begin); first < last; first += kRun) {
        const std::int64_t count = std::min(kRun, last - first);
        const T* gradients = scaled.data();
        if (as_they_are) {
          gradients = update.gradients.as<T>() + first;
        } else {
          scale_gradients(update, factor, first, count, scaled.data());
        }
        rule(*s, rate * s->learning_rate_scale, first, count, parameters + first, gradients);
        if (update.copy.given() && update.copy.dtype == DType::bf16) {
          copy_parameters(parameters + first, count, update.copy.as<BFloat16>() + first);
        } else if (update.copy.given()) {
          copy_parameters(parameters + first, count, update.copy.as<Float16>() + first);
        }
      }
    }
  });
}

}  // namespace lockstep::ops::backend

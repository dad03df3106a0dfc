#pragma once

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::batch_norm {

/// Adds up the sums of all chunks, in the order of the chunks. `slots` holds (2, C) doubles for each chunk. Writes the
/// totals to sums (2, C). `mode` says whether dweight (C) and dbias (C) are set to the totals, are increased by the
/// totals, or do not change.
template <class V>
void join_sums(CpuContext& context, std::int64_t chunks, std::int64_t channels, const Slots& slots, GradMode mode,
               V* sums, V* dweight, V* dbias) {
  using std::int64_t;
  const auto give = [mode](V value, V* gradient, int64_t c) {
    if (mode == GradMode::overwrite) {
      gradient[c] = value;
    } else if (mode == GradMode::accumulate) {
      gradient[c] += value;
    }
  };
  if (chunks == 0) {
    std::fill_n(sums, 2 * channels, V(0));
    for (int64_t c = 0; c < channels; ++c) {
      give(V(0), dbias, c);
      give(V(0), dweight, c);
    }
    return;
  }
  parallel_ranges(context, channels, std::max(int64_t{1}, kGrain / chunks), [&](int64_t first, int64_t last) {
    double* sum = slots.joined(0);
    double* product = sum + channels;
    for (int64_t i = 1; i < chunks; ++i) {
      const double* chunk = slots.joined(i);
#pragma omp simd
      for (int64_t c = first; c < last; ++c) {
        sum[c] += chunk[c];
        product[c] += chunk[channels + c];
      }
    }
    for (int64_t c = first; c < last; ++c) {
      sums[c] = static_cast<V>(sum[c]);
      sums[channels + c] = static_cast<V>(product[c]);
      give(sums[c], dbias, c);
      give(sums[channels + c], dweight, c);
    }
  });
}

}  // namespace lockstep::ops::batch_norm

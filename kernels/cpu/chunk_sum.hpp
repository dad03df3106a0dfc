#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <lockstep/runtime/context/parallel.hpp>

/// Sums over long contiguous tensors on the host.
namespace lockstep::ops {

/// Returns the sum of f(i) for i in [begin, end): 8 independent sums, joined in order, so that the loop vectorises.
template <class F>
double lane_sum(std::int64_t begin, std::int64_t end, F f) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, static_cast<std::size_t>(kLanes)> lanes{};
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] += f(i + lane);
    }
  }
  for (; i < end; ++i) {
    lanes[0] += f(i);
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

/// Returns the sum of f(begin, end) over the chunks of [0, count), joined in order. A chunk has `size` elements;
/// `partial` has room for one number per chunk.
template <class F>
double chunk_sum(const CpuContext& context, std::int64_t count, std::int64_t size, double* partial, F f) {
  parallel_chunks(context, count, size,
                  [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) { partial[chunk] = f(begin, end); });
  double sum = 0;
  for (std::int64_t chunk = 0; chunk * size < count; ++chunk) {
    sum += partial[chunk];
  }
  return sum;
}

}  // namespace lockstep::ops

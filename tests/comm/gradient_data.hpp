#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/runtime/base/half.hpp>

#include "view_of.hpp"

// Gradients for tests of the reducer. Their sums are known exactly.

namespace lockstep::comm {

inline std::vector<GradientRange> ranges(const std::vector<std::int64_t>& sizes, std::int64_t begin = 0) {
  std::vector<GradientRange> result;
  for (const std::int64_t size : sizes) {
    result.push_back({"g" + std::to_string(result.size()), begin, begin + size, 1});
    begin += size;
  }
  return result;
}

inline std::vector<Bucket> small_buckets(const std::vector<GradientRange>& gradients) {
  BucketOptions options;
  options.bucket_bytes = 4 * 1000;
  return plan_buckets(gradients, options);
}

/// Returns element i of a rank's gradient. It is a fraction, so the rounded sum over ranks depends on the order of the
/// ranks and on every bit of every fraction.
inline float gradient(int rank, int step, std::int64_t i) {
  return 1.0f / static_cast<float>(3 + (rank * 7 + step * 13 + static_cast<int>(i) * 5) % 101);
}

/// Returns the sum of element i over all ranks, added in rank order in f32, as the local communicator computes it.
inline float reduced(int size, int step, std::int64_t i) {
  float sum = gradient(0, step, i);
  for (int r = 1; r < size; ++r) {
    sum += gradient(r, step, i);
  }
  return sum;
}

/// Returns the sum of element i over ranks [first, first + count), added in pairs as SumOrder::tree defines. Ranks that
/// do not exist (rank >= size) are left out.
inline float sum_in_tree(int first, int count, int size, int step, std::int64_t i) {
  if (count == 1) {
    return gradient(first, step, i);
  }
  const float left = sum_in_tree(first, count / 2, size, step, i);
  return first + count / 2 < size ? left + sum_in_tree(first + count / 2, count / 2, size, step, i) : left;
}

/// Returns the sum of element i over all ranks, added in rank order. Every gradient and every partial sum is rounded to
/// T.
template <class T>
float rounded_sum(int size, int step, std::int64_t i) {
  T sum(gradient(0, step, i));
  for (int r = 1; r < size; ++r) {
    sum = T(static_cast<float>(sum) + static_cast<float>(T(gradient(r, step, i))));
  }
  return static_cast<float>(sum);
}

/// Returns the sum as SumOrder::ranks defines it: gradients rounded to T are added in f64, and the sum is rounded to
/// f32 and then to T.
template <class T>
float sum_in_rank_order(int size, int step, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < size; ++r) {
    sum += static_cast<double>(static_cast<float>(T(gradient(r, step, i))));
  }
  return static_cast<float>(T(static_cast<float>(sum)));
}

/// Returns the sum of an element whose bucket is exchanged as `dtype` and whose ranks are added in the order `order`.
inline float expected_sum(SumOrder order, DType dtype, int size, int step, std::int64_t i) {
  if (order == SumOrder::tree) {
    return sum_in_tree(0, 8, size, step, i);
  }
  const bool library = order == SumOrder::library;
  switch (dtype) {
    case DType::bf16:
      return library ? rounded_sum<BFloat16>(size, step, i) : sum_in_rank_order<BFloat16>(size, step, i);
    case DType::f16:
      return library ? rounded_sum<Float16>(size, step, i) : sum_in_rank_order<Float16>(size, step, i);
    default:
      return library ? reduced(size, step, i) : sum_in_rank_order<float>(size, step, i);
  }
}

inline const std::vector<std::int64_t> kSizes{700, 1, 299, 2048, 3, 0, 997, 997, 13, 5};

}  // namespace lockstep::comm

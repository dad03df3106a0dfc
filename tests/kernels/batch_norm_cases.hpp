#pragma once

#include <utility>
#include <vector>

#include "tests/kernels/batch_norm_calls.hpp"

namespace lockstep::testing {

/// Returns parameters of test cases: one channel, odd and prime numbers of channels, multiples of 8, and more channels
/// than the op keeps on the stack; from one row to several chunks of rows.
inline std::vector<BatchNormParams> batch_norm_params() {
  std::vector<BatchNormParams> all;
  const Shape shapes[] = {{1, 1},        {5, 1},       {2, 3},       {1, 7},       {3, 17},     {7, 31},
                          {4, 32},       {3, 33},      {9, 64},      {4, 5, 3, 3}, {3, 16},     {6, 11, 13, 7},
                          {67, 9, 9, 3}, {40000, 1},   {37, 41, 31}, {5, 29, 100}, {3, 4, 520}, {17, 4, 257},
                          {5, 2056},     {2, 3, 1031}, {700, 48}};
  int turn = 0;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : shapes) {
      const std::int64_t n = shape[0];
      const bool large = shape.numel() > 10000;
      for (const std::int64_t valid : {n - 1, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, n}) {
        if (large && (valid == 0 || valid == 1)) {
          continue;
        }
        const int bits = turn++ % 8;  // each bit passes or omits an optional tensor; each of the 8 combinations occurs
        all.push_back({shape, dtype, valid, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
      }
    }
    for (int bits = 0; bits < 8; ++bits) {
      all.push_back({{6, 11, 16}, dtype, 5, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
    }
  }
  return all;
}

/// Returns the numbers of rows of the parts of a merge: one part, parts of unequal size, and parts without rows at the
/// beginning, at the end, or everywhere.
inline std::vector<std::vector<std::int64_t>> batch_norm_parts() {
  return {{7}, {0}, {5, 3}, {0, 4}, {4, 0, 1}, {1, 1, 1}, {9, 0, 2, 1000}, {0, 0, 0}};
}

/// Returns one test case for each of the two backward ops on a pair of norms. `turn` chooses the gradient modes and
/// which output overwrites the gradient.
inline std::vector<OpCase> batch_norm_backward_pair_cases(const BatchNormParams& p, int turn) {
  return {batch_norm_backward_reduce_pair_case(p, static_cast<ops::GradMode>(turn % 3),
                                               static_cast<ops::GradMode>(turn / 3 % 3), turn % 2 == 0),
          batch_norm_backward_apply_pair_case(p, static_cast<PairPlace>(turn % 3))};
}

/// Returns parameters of test cases for a GPU. Channels: fewer than fill 16 bytes, a multiple of 16 bytes, one tile,
/// several tiles. Rows: from none to three chunks of a sum. Some tensors have more 16-byte pieces than the emulated GPU
/// has threads.
inline std::vector<BatchNormParams> batch_norm_device_params() {
  std::vector<BatchNormParams> all;
  const Shape shapes[] = {{0, 5},   {1, 1},       {5, 1},         {2, 3},      {3, 17},       {7, 31},   {3, 33},
                          {50, 12}, {4, 5, 3, 3}, {6, 11, 13, 7}, {3, 2048},   {67, 9, 9, 3}, {3000, 1}, {66, 512},
                          {9, 64},  {700, 16},    {17, 4, 257},   {3, 4, 520}, {2, 3, 1031}};
  int turn = 0;
  for (const Shape& shape : shapes) {
    const std::int64_t valid = turn % 2 == 0 ? shape[0] * 2 / 3 : -1;
    const int bits = turn++ % 8;
    all.push_back({shape, DType::f32, valid, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  }
  for (int bits = 0; bits < 8; ++bits) {
    all.push_back({{6, 11, 16}, DType::f32, 5, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  }
  return all;
}

inline std::vector<DeviceCase> batch_norm_device_cases() {
  std::vector<DeviceCase> items;
  const auto add = [&](const BatchNormParams& p, bool rounded, auto make) {
    std::vector<DeviceCase> more = device_cases([&](DType dtype) {
      BatchNormParams with_type = p;
      with_type.dtype = dtype;
      return make(with_type);
    });
    for (DeviceCase& item : more) {
      item.tolerance = rounded ? item.tolerance : item.host.tolerance;
    }
    append(items, std::move(more));
  };
  int turn = 0;
  for (const BatchNormParams& p : batch_norm_device_params()) {
    const auto mode = static_cast<ops::GradMode>(turn++ % 3);
    add(p, false, [](const BatchNormParams& q) { return batch_norm_stats_case(q); });
    add(p, false, [](const BatchNormParams& q) { return batch_norm_coefficients_case(q); });
    add(p, p.residual, [=](const BatchNormParams& q) { return batch_norm_backward_reduce_case(q, mode); });
    if (p.residual) {
      add(p, true, [=](const BatchNormParams& q) {
        return batch_norm_backward_reduce_case(q, mode, GradientPlace::dresidual_in_dy);
      });
    }
    add(p, true, [](const BatchNormParams& q) { return batch_norm_apply_case(q); });
    if (p.second) {
      add(p, true, [](const BatchNormParams& q) { return batch_norm_apply_pair_case(q); });
    }
    for (std::size_t which = 0; which < 2 && p.second; ++which) {
      add(p, true, [=](const BatchNormParams& q) { return batch_norm_backward_pair_cases(q, turn)[which]; });
    }
    for (const GradientPlace place : {GradientPlace::apart, GradientPlace::dx_in_dy, GradientPlace::dresidual_in_dy}) {
      if (p.residual || place != GradientPlace::dresidual_in_dy) {
        add(p, true, [=](const BatchNormParams& q) { return batch_norm_backward_apply_case(q, place); });
      }
    }
  }
  for (const std::int64_t channels : {1, 17, 2048}) {
    for (const std::int64_t rows : {0, 1, 2, 1000}) {
      const OpCase item = batch_norm_finalize_case(channels, DType::f32, rows, rows != 2);
      items.push_back(device_case(item, item));
    }
    for (const std::vector<std::int64_t>& rows : batch_norm_parts()) {
      const OpCase item = batch_norm_merge_stats_case(channels, DType::f32, rows);
      items.push_back(device_case(item, item));
    }
    const OpCase item = batch_norm_finalize_inference_case(channels, DType::f32);
    items.push_back(device_case(item, item));
  }
  return items;
}

}  // namespace lockstep::testing

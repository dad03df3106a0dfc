#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/pool2d.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Parameters that max_pool2d and average_pool2d have in common.
struct PoolParams {
  Shape x;  ///< shape of the input (N, H, W, C)
  ops::PoolDesc desc;
  DType dtype = DType::f32;
};

inline std::string name_of_pool(const char* op, const PoolParams& p) {
  const ops::PoolDesc& d = p.desc;
  return concat(op, ' ', p.dtype, ' ', p.x, " kernel ", d.kernel[0], 'x', d.kernel[1], " stride ", d.stride[0], 'x',
                d.stride[1], " pad ", d.pad_before[0], ' ', d.pad_before[1], ' ', d.pad_after[0], ' ', d.pad_after[1]);
}

/// Returns parameters of test cases: the pool of ResNet-50's stem; windows that overlap, that leave gaps, that are
/// padded on one side, or that cover the image; odd numbers of channels, fewer and more than a block processes.
inline std::vector<PoolParams> pool_params(DType dtype) {
  return {{{1, 1, 1, 1}, {}, dtype},
          {{2, 12, 12, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype},
          {{2, 11, 9, 17}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype},
          {{3, 8, 8, 7}, {{2, 2}, {2, 2}, {0, 0}, {0, 0}}, dtype},
          {{2, 7, 10, 33}, {{3, 2}, {1, 1}, {2, 0}, {0, 1}}, dtype},
          {{2, 9, 7, 3}, {{2, 1}, {3, 4}, {0, 0}, {1, 0}}, dtype},
          {{1, 5, 6, 129}, {{5, 6}, {1, 1}, {0, 0}, {0, 0}}, dtype},
          {{2, 5, 5, 2}, {{4, 4}, {3, 3}, {3, 3}, {3, 3}}, dtype},
          {{0, 5, 5, 2}, {{2, 2}, {1, 1}, {0, 0}, {0, 0}}, dtype},
          {{4, 30, 31, 67}, {{3, 3}, {2, 2}, {0, 0}, {1, 1}}, dtype}};
}

/// Calls f(output, input, pixel) for each element of y (N, P, Q, C) and each element of x in its window. Reference
/// implementations use it. output and input are row-major indices of the two elements; pixel is h * W + w.
template <class F>
void for_each_pair(const PoolParams& p, F f) {
  const Shape y = ops::pooled_shape(p.desc, p.x);
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const std::int64_t q = i / y[3] % y[2];
    const std::int64_t row = i / y[3] / y[2] % y[1];
    const std::int64_t n = i / y[3] / y[2] / y[1];
    for (std::int64_t r = 0; r < p.desc.kernel[0]; ++r) {
      for (std::int64_t s = 0; s < p.desc.kernel[1]; ++s) {
        const std::int64_t h = row * p.desc.stride[0] - p.desc.pad_before[0] + r;
        const std::int64_t w = q * p.desc.stride[1] - p.desc.pad_before[1] + s;
        if (h >= 0 && h < p.x[1] && w >= 0 && w < p.x[2]) {
          const std::int64_t from = ((n * p.x[1] + h) * p.x[2] + w) * p.x[3] + i % y[3];
          f(static_cast<std::size_t>(i), static_cast<std::size_t>(from), h * p.x[2] + w);
        }
      }
    }
  }
}

}  // namespace lockstep::testing

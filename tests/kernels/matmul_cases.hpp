#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/matmul.hpp>

namespace lockstep::testing {

struct MatmulCase {
  std::string name;
  ops::MatmulDesc desc;
};

/// Every transposition and epilogue over sizes of 1, odd and prime, below and above a block of the reference.
inline std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  const std::int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 1}, {128, 10, 64}, {10, 64, 128}, {5, 67, 31}, {33, 130, 17}};
  for (const auto& [m, n, k] : sizes) {
    for (int variant = 0; variant < 12; ++variant) {
      ops::MatmulDesc d;
      d.m = m;
      d.n = n;
      d.k = k;
      d.transpose_a = (variant & 1) != 0;
      d.transpose_b = (variant & 2) != 0;
      d.bias = variant / 4 == 1;
      d.grad_mode = variant / 4 == 2 ? ops::GradMode::accumulate : ops::GradMode::overwrite;
      cases.push_back({concat(m, "_", n, "_", k, d.transpose_a ? "_ta" : "", d.transpose_b ? "_tb" : "",
                              d.bias ? "_bias" : "", variant / 4 == 2 ? "_accumulate" : ""),
                       d});
    }
  }
  return cases;
}

}  // namespace lockstep::testing

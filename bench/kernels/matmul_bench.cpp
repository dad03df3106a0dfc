#include <lockstep/kernels/providers.hpp>
#include <lockstep/runtime/device.hpp>

#include "tests/kernels/matmul_cases.hpp"

namespace lockstep::bench {

/// The three products of the last layers of ResNet-20 and ResNet-50, and one large square, in f32 and bf16, with every
/// choice that the host has and, where there is a GPU, the best guess of each of its providers.
std::vector<testing::OpCase> matmul_bench() {
  CpuContext context;
  std::vector<testing::OpCase> items;
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) {
    ops::MatmulDesc d;
    d.m = m;
    d.n = n;
    d.k = k;
    d.transpose_a = transpose_a;
    d.transpose_b = transpose_b;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      d.dtype = dtype;
      d.accumulator_output = transpose_a;  // the gradient of weights
      for (const std::string& choice : ops::matmul_choices(context, d)) {
        items.push_back(testing::matmul_case(d, choice));
      }
      for (const ops::MatmulProvider& provider : ops::matmul_providers()) {
        if (provider.device == DeviceKind::cuda && num_gpus() > 0) {
          items.push_back(testing::matmul_case(d, std::string(provider.name)));
        }
      }
    }
  };
  const auto add_linear = [&](std::int64_t batch, std::int64_t in, std::int64_t out) {
    add(batch, out, in, false, true);   // forward
    add(batch, in, out, false, false);  // backward_data
    add(out, in, batch, true, false);   // backward_weights
  };
  add_linear(128, 64, 10);
  add_linear(32, 2048, 1000);
  add(1024, 1024, 1024, false, false);
  return items;
}

}  // namespace lockstep::bench

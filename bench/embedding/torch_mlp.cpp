#include "torch_mlp.hpp"

#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/api/include/torch/version.h>

namespace {

struct Mlp {
  at::TensorOptions type;
  std::vector<at::Tensor> weights;
};

}  // namespace

void* bench_torch_make(std::int32_t f64, const void* const* weights) try {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  auto* made = new Mlp{at::TensorOptions().dtype(f64 == 1 ? at::kDouble : at::kFloat), {}};
  const std::vector<std::vector<std::int64_t>> shapes{{32, 4}, {32}, {32, 32}, {32}, {1, 32}, {1}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    made->weights.push_back(at::from_blob(const_cast<void*>(weights[i]), shapes[i], made->type).clone());
  }
  return made;
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch: %s\n", error.what());
  return nullptr;
}

std::int32_t bench_torch_run(void* mlp, const void* in, void* out, std::int64_t n) try {
  const c10::InferenceMode inference;
  const auto& [type, w] = *static_cast<const Mlp*>(mlp);
  at::Tensor x = at::from_blob(const_cast<void*>(in), {n, 4}, type);
  x = at::tanh(at::linear(x, w[0], w[1]));
  x = at::tanh(at::linear(x, w[2], w[3]));
  at::from_blob(out, {n, 1}, type).copy_(at::linear(x, w[4], w[5]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch: %s\n", error.what());
  return 1;
}

void bench_torch_end(void* mlp) {
  delete static_cast<Mlp*>(mlp);
}

const char* bench_torch_version() {
  return TORCH_VERSION;
}

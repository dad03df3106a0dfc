#include "tests/kernels/adam_cases.hpp"
#include "tests/kernels/clip_cases.hpp"
#include "tests/kernels/fill_cases.hpp"
#include "tests/kernels/hash_cases.hpp"
#include "tests/kernels/lars_cases.hpp"
#include "tests/kernels/lerp_cases.hpp"
#include "tests/kernels/loss_scale_cases.hpp"
#include "tests/kernels/reduce_cases.hpp"
#include "tests/kernels/sgd_cases.hpp"
#include "tests/kernels/weight_sum_cases.hpp"

namespace lockstep::bench {

/// Returns cases for Adam on the arenas of ResNet-20 and ResNet-50 and on one bucket of 25 MiB. Also returns a case for
/// AdamW with bf16 gradients and a bf16 copy of the parameters.
std::vector<testing::OpCase> adam_bench() {
  std::vector<testing::OpCase> items;
  const auto arena = [](std::int64_t n) {
    return testing::ArenaParams{n, DType::f32, testing::mixed_segments(n, 0), 0};
  };
  for (const std::int64_t n : {272474, 6553600, 25557032}) {
    items.push_back(testing::adam_case(arena(n), {}));
  }
  testing::ArenaParams half = arena(25557032);
  half.gradients = half.copy = DType::bf16;
  items.push_back(testing::adam_case(half, {.decoupled = true}));
  return items;
}

/// Returns a case for a few scalars: its time is mostly the kernel launch.
std::vector<testing::OpCase> clip_bench() {
  return {testing::clip_case({DType::f32, 1, 4, 1024})};
}

/// Returns cases for a small range, the gradients of ResNet-20, and the gradients of ResNet-50.
std::vector<testing::OpCase> fill_bench() {
  std::vector<testing::OpCase> items;
  for (const std::int64_t n : {4096, 272474, 25557032}) {
    items.push_back(testing::fill_case(0.0, Shape{n}, DType::f32));
  }
  return items;
}

/// Returns cases for the parameters of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> hash_bench() {
  return {testing::hash_case({25557032}, DType::f32), testing::hash_case({124439808}, DType::f32)};
}

/// Returns cases for the arenas of ResNet-20 and ResNet-50, with a segment for each tensor of the network, and a case
/// for one bucket of 25 MiB.
std::vector<testing::OpCase> lars_bench() {
  std::vector<testing::OpCase> items;
  for (const auto& [n, tensors] : {std::pair<std::int64_t, std::int64_t>{272474, 65}, {6553600, 40}, {25557032, 161}}) {
    items.push_back(testing::lars_case({n, DType::f32, testing::many_segments(n, tensors), 0}, {.momentum = 0.9}));
  }
  return items;
}

/// Returns cases for the averaged weights of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> lerp_bench() {
  return {testing::lerp_case({25557032}, DType::f32, 1e-4), testing::lerp_case({124439808}, DType::f32, 1e-4)};
}

/// Returns a case for a few scalars: its time is mostly the kernel launch.
std::vector<testing::OpCase> loss_scale_bench() {
  return {testing::loss_scale_case({.good = 7})};
}

/// Returns cases for reduce_rows: the bias gradients of two classifiers, and a reduction of many rows. Also returns
/// cases for squared_norm, sum and all_finite over the parameters of ResNet-50.
std::vector<testing::OpCase> reduce_bench() {
  return {testing::reduce_rows_case(128, 10, DType::f32),    testing::reduce_rows_case(256, 1000, DType::f32),
          testing::reduce_rows_case(131072, 64, DType::f32), testing::squared_norm_case(Shape{25557032}, DType::f32),
          testing::sum_case(Shape{25557032}, DType::f32),    testing::all_finite_case(Shape{25557032}, DType::f32)};
}

/// Returns cases for the arenas of ResNet-20 and ResNet-50 and for one bucket of 25 MiB. Each arena has two parameter
/// groups, as when biases have no weight decay. Two more cases use the arena of ResNet-50: one without momentum, one
/// with bf16 gradients and a bf16 copy of the parameters.
std::vector<testing::OpCase> sgd_bench() {
  std::vector<testing::OpCase> items;
  const auto arena = [](std::int64_t n) {
    return testing::ArenaParams{n, DType::f32, testing::mixed_segments(n, 0), 0};
  };
  for (const std::int64_t n : {272474, 6553600, 25557032}) {
    items.push_back(testing::sgd_case(arena(n), {0.9, false}));
  }
  items.push_back(testing::sgd_case(arena(25557032), {}));
  testing::ArenaParams half = arena(25557032);
  half.gradients = half.copy = DType::bf16;
  items.push_back(testing::sgd_case(half, {0.9, false}));
  return items;
}

/// Returns cases with one weight per sample, per token of a text, and per value of an image.
std::vector<testing::OpCase> weight_sum_bench() {
  return {testing::weight_sum_case({Shape{256}}, DType::f32), testing::weight_sum_case({Shape{32, 1024}}, DType::f32),
          testing::weight_sum_case({Shape{32, 224, 224, 3}}, DType::f32)};
}

}  // namespace lockstep::bench

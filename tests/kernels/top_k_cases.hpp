#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/top_k.hpp>

#include "tests/kernels/softmax_cross_entropy_cases.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct TopKParams {
  std::int64_t samples = 1;
  std::int64_t classes = 1;
  int k = 1;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  bool weighted = false;
};

/// Makes a test case of top_k_correct(). Inputs: logits, labels, valid, weights from -1 to 4; output: result, which
/// starts at 7. The logits are multiples of 1/8, so that most rows contain equal numbers. The labels go from -1 to K,
/// so some are out of range.
inline OpCase top_k_case(const TopKParams& p, DType dtype) {
  const Shape shape{p.samples, p.classes};
  return {.name = concat("top_k_correct ", dtype, ' ', shape, " k ", p.k,
                         p.valid >= 0 ? concat(" valid ", p.valid) : std::string(), p.weighted ? " weighted" : ""),
          .dtype = dtype,
          .inputs = {{"logits", shape, dtype, eighths(2)},
                     {"labels", Shape{p.samples}, DType::i32, integers(1, -1, p.classes)},
                     {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                     {"weights", Shape{p.samples}, ops::accumulation_dtype(dtype), integers(3, -1, 4)}},
          .outputs = {{"result", Shape{}, DType::f64, constant(7)}},
          .run =
              [=](Context& context, Views in, Views out, const TensorView& workspace) {
                ops::top_k_correct(context, in[0], in[1], p.weighted ? in[3] : TensorView(),
                                   p.valid >= 0 ? in[2] : TensorView(), p.k, out[0], workspace);
              },
          .workspace_bytes = workspace_for(ops::top_k_workspace_bytes, dtype, shape),
          .flops = static_cast<double>(p.samples * p.classes)};
}

/// Returns parameters of test cases: one sample, one class, odd and prime sizes, rows that begin at any offset from a
/// vector's boundary, rows of complete vectors, and rows longer than a block.
inline std::vector<TopKParams> top_k_params() {
  return {{0, 5, 2},    {1, 1, 1},       {3, 2, 2},       {33, 10, 5, 20},      {31, 101, 5, 31},
          {17, 64, 20}, {523, 7, 3, 0},  {61, 33, 5, 99}, {64, 24, 1},          {257, 3, 1},
          {6, 1031, 5}, {3, 4099, 1000}, {5, 1000, 400},  {37, 5, 2, -1, true}, {5003, 3, 1, 5000, true}};
}

/// Returns the test cases for a GPU. GPU and host compare the same numbers, so the results are equal in every type.
inline std::vector<DeviceCase> top_k_device_cases() {
  std::vector<DeviceCase> items;
  for (const TopKParams& p : top_k_params()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      items.push_back({top_k_case(p, dtype), top_k_case(p, DType::f32), 0});
    }
  }
  return items;
}

}  // namespace lockstep::testing

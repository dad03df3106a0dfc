#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/weight_sum.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct WeightSumParams {
  Shape shape;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  bool scaled = false;
  ops::GradMode mode = ops::GradMode::overwrite;
  bool total = true;
};

/// Makes a test case of weight_sum(). Inputs: weights, valid, scale; outputs: sum and total. sum starts at 0.5 unless
/// the op overwrites it. The op adds to total, which starts at 7.
inline OpCase weight_sum_case(const WeightSumParams& p, DType dtype) {
  const bool overwrites = p.mode == ops::GradMode::overwrite;
  return {.name = concat("weight_sum ", dtype, ' ', p.shape, p.valid >= 0 ? concat(" valid ", p.valid) : std::string(),
                         p.scaled ? " scaled" : "",
                         overwrites ? "" : (p.mode == ops::GradMode::accumulate ? " accumulate" : " total only"),
                         p.total ? "" : " no total"),
          .dtype = dtype,
          .inputs = {{"weights", p.shape, dtype, normal(1)},
                     {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                     {"scale", Shape{}, dtype, constant(0.375)}},
          .outputs = {{"sum", Shape{}, dtype, overwrites ? Generator() : constant(0.5)},
                      {"total", Shape{}, DType::f64, constant(7)}},
          .run =
              [=](Context& context, Views in, Views out, const TensorView& workspace) {
                ops::weight_sum(context, in[0], p.valid >= 0 ? in[1] : TensorView(), p.scaled ? in[2] : TensorView(),
                                p.mode, p.mode == ops::GradMode::ignore ? TensorView() : out[0],
                                p.total ? out[1] : TensorView(), workspace);
              },
          .workspace_bytes = workspace_for(ops::weight_sum_workspace_bytes, dtype, p.shape),
          .flops = static_cast<double>(p.shape.numel()),
          .tolerance = dtype == DType::f64 ? 1e-13 : 1e-6};
}

/// Returns parameters of test cases: no element, one element, odd and prime sizes, multiples of a vector, more than a
/// chunk; every number of valid samples, scale and kind of output.
inline std::vector<WeightSumParams> weight_sum_params() {
  std::vector<WeightSumParams> all;
  for (const Shape& shape :
       {Shape{0}, Shape{0, 5}, Shape{1}, Shape{7}, Shape{5, 2, 8}, Shape{31, 3}, Shape{7, 4801}, Shape{16385}}) {
    const std::int64_t n = shape[0];
    all.push_back({shape});
    all.push_back({shape, n - n / 3, true, ops::GradMode::accumulate});
    all.push_back({shape, n / 2, true, ops::GradMode::overwrite, false});
    all.push_back({shape, n + 3, false, ops::GradMode::ignore});
    all.push_back({shape, 0, true});
  }
  return all;
}

/// Returns the test cases for a GPU. Weights are f32, even if the GPU computes in another type.
inline std::vector<DeviceCase> weight_sum_device_cases() {
  return same_cases(weight_sum_params(), [](const WeightSumParams& p) { return weight_sum_case(p, DType::f32); });
}

}  // namespace lockstep::testing

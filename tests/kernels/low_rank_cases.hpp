#pragma once

#include <vector>

#include <lockstep/kernels/low_rank.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Returns the relative size of a column's residual below which the tests expect the column to be dropped.
inline double column_epsilon(DType dtype) {
  return dtype == DType::f64 ? 1e-8 : 3e-4;
}

/// Makes a test case of orthonormalise(). Outputs: x, which is changed in place, and columns. equal: all columns of x
/// are the same, so the op keeps only the first.
inline OpCase orthonormalise_case(const Shape& shape, DType dtype, bool equal = false) {
  return {.name = concat("low_rank orthonormalise ", dtype, ' ', shape, equal ? " equal columns" : ""),
          .dtype = dtype,
          .outputs = {{"x", shape, dtype, equal ? constant(0.375) : normal(1, 0.5, 2)},
                      {"columns", Shape{shape[1]}, DType::i32, {}}},
          .run = [=](Context& context, Views, Views out,
                     const TensorView&) { ops::orthonormalise(context, column_epsilon(dtype), out[0], out[1]); },
          .tolerance = dtype == DType::f64 ? 1e-12 : 3e-6};
}

/// Makes a test case of low_rank_residual(). Inputs: x (m, n), p (m, r), q (n, r), columns; output: error.
inline OpCase low_rank_residual_case(std::int64_t m, std::int64_t n, std::int64_t r, DType dtype, bool finite = true) {
  const double column = static_cast<double>(finite ? ops::Column::kept : ops::Column::not_finite);
  return {.name = concat("low_rank residual ", dtype, ' ', m, 'x', n, " rank ", r, finite ? "" : " not finite"),
          .dtype = dtype,
          .inputs = {{"x", Shape{m, n}, dtype, normal(1)},
                     {"p", Shape{m, r}, dtype, normal(2)},
                     {"q", Shape{n, r}, dtype, normal(3)},
                     {"columns", Shape{r}, DType::i32, constant(column)}},
          .outputs = {{"error", Shape{m, n}, dtype, finite ? Generator() : normal(4)}},
          .run = [](Context& context, Views in, Views out,
                    const TensorView&) { ops::low_rank_residual(context, in[0], in[1], in[2], in[3], out[0]); },
          .tolerance = dtype == DType::f64 ? 1e-14 : 2e-6};
}

/// Makes a test case of keep_columns(). Inputs: from (n, r), columns; output: to.
inline OpCase keep_columns_case(std::int64_t n, std::int64_t r, DType dtype, ops::Column column) {
  return {.name = concat("low_rank keep ", dtype, ' ', n, 'x', r, " column ", static_cast<int>(column)),
          .dtype = dtype,
          .inputs = {{"from", Shape{n, r}, dtype, normal(1)},
                     {"columns", Shape{r}, DType::i32, constant(static_cast<double>(column))}},
          .outputs = {{"to", Shape{n, r}, dtype, normal(2)}},
          .run = [](Context& context, Views in, Views out, const TensorView&) {
            ops::keep_columns(context, in[0], in[1], out[0]);
          }};
}

/// Returns test cases: one element; fewer rows than a block has threads, and more; rows that consist of whole 16-byte
/// pieces, and rows that do not.
inline std::vector<OpCase> low_rank_cases(DType dtype) {
  std::vector<OpCase> items;
  for (const Shape& shape : {Shape{1, 1}, Shape{5, 3}, Shape{33, 1}, Shape{255, 2}, Shape{700, 4}}) {
    items.push_back(orthonormalise_case(shape, dtype));
    items.push_back(orthonormalise_case(shape, dtype, true));
  }
  for (const std::int64_t r : {1, 2, 4}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{4, 16}, Shape{65, 132}}) {
      items.push_back(low_rank_residual_case(shape[0], shape[1], r, dtype));
      items.push_back(low_rank_residual_case(shape[0], shape[1], r, dtype, false));
    }
    for (const ops::Column column : {ops::Column::dropped, ops::Column::kept, ops::Column::not_finite}) {
      items.push_back(keep_columns_case(77, r, dtype, column));
    }
  }
  return items;
}

/// Returns the test cases for a GPU. The ops have GPU kernels for f32 only, because PowerSGD adds gradients in f32.
inline std::vector<DeviceCase> low_rank_device_cases() {
  return same_cases(low_rank_cases(DType::f32));
}

}  // namespace lockstep::testing

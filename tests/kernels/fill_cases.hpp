#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/fill.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline OpCase fill_case(double value, const Shape& shape, DType dtype) {
  return {.name = concat("fill ", dtype, ' ', shape),
          .dtype = dtype,
          .outputs = {{"out", shape, dtype, {}}},
          .run = [=](Context& context, Views, Views out, const TensorView&) { ops::fill(context, value, out[0]); }};
}

/// Returns test cases: every type; no element, one element, odd and prime counts, and more elements than one CPU thread
/// processes.
inline std::vector<OpCase> fill_cases() {
  std::vector<OpCase> items;
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64}) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{3, 0, 2}, Shape{7, 3}, Shape{101}, Shape{131101}}) {
      items.push_back(fill_case(3.75, shape, dtype));
    }
  }
  return items;
}

inline std::vector<DeviceCase> fill_device_cases() {
  return same_cases(fill_cases());
}

}  // namespace lockstep::testing

#pragma once

#include <vector>

#include <lockstep/kernels/hash.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes a test case of hash_range(). Input: x; output: result.
inline OpCase hash_case(const Shape& shape, DType dtype) {
  OpCase item;
  item.name = concat("hash_range ", dtype, ' ', shape);
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, integers(1, 0, 200)}};
  item.outputs = {{"result", Shape{}, DType::u64, constant(5)}};  // initial value, which the op must replace
  item.run = [=](Context& context, Views in, Views out, const TensorView&) { ops::hash_range(context, in[0], out[0]); };
  item.bytes = static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;
}

/// Returns test cases: no bytes, a scalar, less than a word, sizes around one word and 16 bytes, odd sizes, and more
/// bytes than a grid processes at once.
inline std::vector<OpCase> hash_cases() {
  std::vector<OpCase> items;
  for (const std::int64_t bytes : {0, 1, 7, 8, 9, 15, 16, 17, 31, 1000003}) {
    items.push_back(hash_case({bytes}, DType::u8));
  }
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u64}) {
    items.push_back(hash_case({}, dtype));
    items.push_back(hash_case({3, 5, 7}, dtype));
    items.push_back(hash_case({40001}, dtype));
  }
  return items;
}

/// Returns the test cases for a GPU. The GPU must give the same result as the host, with the same types.
inline std::vector<DeviceCase> hash_device_cases() {
  return same_cases(hash_cases());
}

}  // namespace lockstep::testing

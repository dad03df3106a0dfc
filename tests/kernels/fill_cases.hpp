#pragma once

#include <vector>

#include <lockstep/runtime/dtype.hpp>
#include <lockstep/runtime/shape.hpp>

namespace lockstep::testing {

/// Empty, one element, odd, prime, and more than one thread's share.
inline std::vector<Shape> fill_shapes() {
  return {Shape{}, Shape{0}, Shape{1}, Shape{3, 0, 2}, Shape{7, 3}, Shape{101}, Shape{65537}, Shape{3, 65536, 1}};
}

inline std::vector<DType> all_dtypes() {
  return {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64};
}

}  // namespace lockstep::testing

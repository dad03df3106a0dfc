#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::testing {

/// Returns ||out - ref|| / ||ref|| (Euclidean norms in double) of host views of any types and strides; ||out|| when ref
/// is all zero. Infinity when out or ref holds a NaN, or when an element is infinite and differs from the other view's
/// element. Throws ShapeError when the shapes differ.
[[nodiscard]] double relative_error(const TensorView& out, const TensorView& ref);

/// True if relative_error() is at most `tolerance`. Use it with EXPECT_TRUE, and with EXPECT_FALSE in negative
/// controls.
[[nodiscard]] ::testing::AssertionResult is_close(const TensorView& out, const TensorView& ref, double tolerance);
/// True if shape, type and bits are equal (so NaN equals a NaN of the same bits, and -0 differs from 0).
[[nodiscard]] ::testing::AssertionResult has_same_bits(const TensorView& a, const TensorView& b);

/// Expects is_close(); a failure names the caller's line.
void expect_close(const TensorView& out, const TensorView& ref, double tolerance, std::string_view what = {},
                  const char* file = __builtin_FILE(), int line = __builtin_LINE());
void expect_same_bits(const TensorView& a, const TensorView& b, std::string_view what = {},
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace lockstep::testing

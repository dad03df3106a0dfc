#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Functions of the file that test_packaging_variants has in two variants (kernel.cpp).
namespace lockstep::testing {

/// Returns the variant of the code that runs: "x86-64-v3" or "x86-64-v4".
[[nodiscard]] std::string variant_of_the_code();
/// Returns the sum of `values` times the last argument. Has more arguments than fit in registers.
[[nodiscard]] double weighted_sum(const std::vector<double>& values, double a, double b, std::int64_t c, std::int64_t d,
                                  std::int64_t e, std::int64_t f, std::int64_t g, std::int64_t weight);
/// Throws ShapeError with the variant's name.
void throw_by_variant();

}  // namespace lockstep::testing

#include "kernel.hpp"

#include <numeric>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::testing {

std::string variant_of_the_code() {
#if defined(__AVX512F__)
  return "x86-64-v4";
#else
  return "x86-64-v3";
#endif
}

double weighted_sum(const std::vector<double>& values, double a, double b, std::int64_t c, std::int64_t d,
                    std::int64_t e, std::int64_t f, std::int64_t g, std::int64_t weight) {
  std::vector<double> scaled;  // instances of templates of the standard library, compiled for this variant
  for (const double value : values) {
    scaled.push_back(value * static_cast<double>(weight));
  }
  return std::accumulate(scaled.begin(), scaled.end(), 0.0) + a + b + static_cast<double>(c + d + e + f + g);
}

void throw_by_variant() {
  throw ShapeError("thrown by " + variant_of_the_code());
}

}  // namespace lockstep::testing

#include "tests/support/compare.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/guarded.hpp"

namespace lockstep::testing {

double relative_error(const TensorView& out, const TensorView& ref) {
  require<ShapeError>(out.shape == ref.shape, "compare: out is ", out.shape, ", ref is ", ref.shape);
  const std::vector<double> a = to_doubles(out);
  const std::vector<double> b = to_doubles(ref);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    } else if (!(a[i] == b[i])) {  // two equal infinities do not count as a difference
      return std::numeric_limits<double>::infinity();
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

::testing::AssertionResult is_close(const TensorView& out, const TensorView& ref, double tolerance) {
  if (out.shape != ref.shape) {
    return ::testing::AssertionFailure() << "out is " << out << ", ref is " << ref;
  }
  const double error = relative_error(out, ref);
  if (error <= tolerance) {
    return ::testing::AssertionSuccess() << "relative error " << error << " of " << out;
  }
  auto failure = ::testing::AssertionFailure()
                 << "relative error " << error << " > " << tolerance << " of " << out << ";";
  const std::vector<double> a = to_doubles(out);
  const std::vector<double> b = to_doubles(ref);
  std::size_t worst = 0;
  double most = -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (std::isnan(d)) {
      worst = i;
      break;
    }
    if (d > most) {
      most = d;
      worst = i;
    }
  }
  if (!a.empty()) {
    failure << " worst or first NaN at element " << worst << ": " << a[worst] << ", expected " << b[worst];
  }
  return failure;
}

::testing::AssertionResult has_same_bits(const TensorView& a, const TensorView& b) {
  if (a.shape != b.shape || a.dtype != b.dtype || !a.is_contiguous() || !b.is_contiguous()) {
    return ::testing::AssertionFailure() << a << " and " << b << ": expected one shape and type, contiguous";
  }
  const std::size_t size = size_of(a.dtype);
  for (std::size_t i = 0; i < a.bytes(); i += size) {
    if (std::memcmp(static_cast<const std::byte*>(a.data) + i, static_cast<const std::byte*>(b.data) + i, size) != 0) {
      const std::size_t element = i / size;
      return ::testing::AssertionFailure() << "element " << element << " of " << a << ": " << to_doubles(a)[element]
                                           << " and " << to_doubles(b)[element] << " differ in bits";
    }
  }
  return ::testing::AssertionSuccess() << a << " has the same bits";
}

namespace {

void report(const ::testing::AssertionResult& result, std::string_view what, const char* file, int line) {
  if (!result) {
    ADD_FAILURE_AT(file, line) << what << (what.empty() ? "" : ": ") << result.message();
  }
}

}  // namespace

void expect_close(const TensorView& out, const TensorView& ref, double tolerance, std::string_view what,
                  const char* file, int line) {
  report(is_close(out, ref, tolerance), what, file, line);
}

void expect_same_bits(const TensorView& a, const TensorView& b, std::string_view what, const char* file, int line) {
  report(has_same_bits(a, b), what, file, line);
}

}  // namespace lockstep::testing

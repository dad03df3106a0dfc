#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/gradient_check.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Calls run() and check(). Fails the test when a guard or an input changed.
void run_checked(OpInstance& instance, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// An OpInstance on which the constructor has called run_checked().
class CheckedRun : public OpInstance {
 public:
  CheckedRun(const OpCase& item, Context& context, const std::vector<GuardedTensor>* inputs = nullptr,
             const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : OpInstance(item, context, inputs) {
    run_checked(*this, file, line);
  }
};

using Inputs = std::span<const GuardedTensor>;
using Outputs = std::span<GuardedTensor>;

/// Runs the case on the context and checks guards and inputs. Then calls `oracle` with the inputs and with one poisoned
/// tensor per output. `oracle` must write the expected outputs, computed in double or by a naive method. The relative
/// error of each output must be at most item.tolerance; if this is 0, the bits must be equal.
using Oracle = std::function<void(Inputs inputs, Outputs expected)>;
void expect_matches(const OpCase& item, Context& context, const Oracle& oracle, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());
/// Runs the case on the host, with two threads. All cases of a program share one context.
void expect_matches(const OpCase& item, const Oracle& oracle, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

/// True if the outputs have the same bits on the host for every number of threads in `threads`.
[[nodiscard]] ::testing::AssertionResult same_bits_for_threads(const OpCase& item, const std::vector<int>& threads);
/// Expects same_bits_for_threads(). As a control, flips one bit of the first output that is not empty, and expects that
/// the comparison fails.
void expect_same_bits_for_threads(const OpCase& item, const std::vector<int>& threads = {1, 2, 3},
                                  const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Expects the same bits in all outputs of two runs.
void expect_same_outputs(const OpInstance& a, const OpInstance& b, std::string_view what = {},
                         const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Expects that the op treats the value `told` of scalar input number `input` as if it were `meant`: all outputs have
/// the same bits for both.
void expect_taken_for(Context& context, OpCase item, std::size_t input, std::int64_t told, std::int64_t meant,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Runs the case once in one OpInstance and twice in a second OpInstance. Expects the same bits from all three runs. As
/// a control, changes the first input and expects other bits.
void expect_repeatable(const OpCase& item, Context& context, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE());

/// Expects gradient_error() of f64 gradients to be within the tolerance. As a control, expects more than 1e-3 when one
/// gradient is off by a hundredth, for each gradient in turn.
void expect_gradients(const std::function<double()>& loss, const std::vector<GradientPair>& pairs,
                      double tolerance = 1e-8, std::string_view what = {}, double h = 1e-5,
                      std::int64_t max_elements = 200, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());

/// Calls `call` with valid views (host, contiguous, rank 1 or more), then with one view invalid at a time. Expects a
/// DeviceError for another device, and a DTypeError for f16. Expects a ShapeError for another extent, a gap between
/// rows, or an address between two elements. With all_required, a view that is not given must fail, too.
void expect_views_checked(std::vector<TensorView> views,
                          const std::function<void(const std::vector<TensorView>&)>& call, bool all_required = false);

/// Runs both cases on the same inputs (a's) and compares the outputs. Each output of b must be within the tolerance of
/// a's; outputs of integer types must have the same bits. Compares two backends, two types, or two formulations of one
/// op.
void compare(const OpCase& a, Context& context_a, const OpCase& b, Context& context_b, double tolerance,
             const char* file = __builtin_FILE(), int line = __builtin_LINE());
/// Compares both cases on the host.
void compare(const OpCase& a, const OpCase& b, double tolerance, const char* file = __builtin_FILE(),
             int line = __builtin_LINE());

}  // namespace lockstep::testing

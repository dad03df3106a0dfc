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

/// run() + check(): fails the test when a guard or an input changed.
void run_checked(OpInstance& instance, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// An OpInstance after run_checked().
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

/// Runs the case on the context with guards checked and gives its outputs and inputs to `oracle`, which computes the
/// expected outputs (already made, poisoned) from the inputs, in double or naively. Each output must be within
/// item.tolerance; 0 asks for the same bits.
using Oracle = std::function<void(Inputs inputs, Outputs expected)>;
void expect_matches(const OpCase& item, Context& context, const Oracle& oracle, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());
/// On the host, with two threads: one context for all cases of a program.
void expect_matches(const OpCase& item, const Oracle& oracle, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

/// The outputs have the same bits for every thread count (host).
[[nodiscard]] ::testing::AssertionResult same_bits_for_threads(const OpCase& item, const std::vector<int>& threads);
/// Expects the above, and as a control that one flipped bit of the first output that has one would show.
void expect_same_bits_for_threads(const OpCase& item, const std::vector<int>& threads = {1, 2, 3},
                                  const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Expects the same bits in all outputs of two runs.
void expect_same_outputs(const OpInstance& a, const OpInstance& b, std::string_view what = {},
                         const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Expects the same bits whether the scalar input at this index holds `told` or `meant`.
void expect_taken_for(Context& context, OpCase item, std::size_t input, std::int64_t told, std::int64_t meant,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Expects the same bits in all outputs from a second instance, twice, and others from another first input.
void expect_repeatable(const OpCase& item, Context& context, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE());

/// Expects gradient_error() of f64 gradients within the tolerance, and as a control more than 1e-3 once one of the
/// gradients is off by a hundredth, each of them in turn.
void expect_gradients(const std::function<double()>& loss, const std::vector<GradientPair>& pairs,
                      double tolerance = 1e-8, std::string_view what = {}, double h = 1e-5,
                      std::int64_t max_elements = 200, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());

/// Calls `call` with good views (of the host, contiguous, rank 1 or more), then with each of them spoiled in turn:
/// another device is a DeviceError, f16 a DTypeError, another extent, a gap between rows and an address between two
/// elements a ShapeError; with all_required also a view that is not given.
void expect_views_checked(std::vector<TensorView> views,
                          const std::function<void(const std::vector<TensorView>&)>& call, bool all_required = false);

/// Runs both cases on the same inputs (a's) and compares the outputs: each of b within tolerance of a's, the same bits
/// where it is no floating point type. Two backends, two types, or two formulations of one op.
void compare(const OpCase& a, Context& context_a, const OpCase& b, Context& context_b, double tolerance,
             const char* file = __builtin_FILE(), int line = __builtin_LINE());
/// On the host.
void compare(const OpCase& a, const OpCase& b, double tolerance, const char* file = __builtin_FILE(),
             int line = __builtin_LINE());

}  // namespace lockstep::testing

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep::nn {

/// Compares the library calls of a plan (PlanOptions::verifier) with our own kernels before the first step. If a
/// library's implementation is wrong for a shape, a number differs by more than rounding, or a guard byte changes.
///
/// Each call runs on random numbers between guard bytes: once with the context's threads and, on the host, once more
/// with one thread. The batch of that run (for a product, also its rows and terms) is the smallest for which the
/// library chooses the implementation of the plan's call (ConvPlan::implementation()). A fault that only a larger batch
/// shows is not found. NormTrial compares the passes that serve a norm (ConvPlan::serves_norm()).
///
/// A difference is an error if it exceeds the sum of two bounds. The first is four times the largest error of an f32
/// sum of as many terms in any order. The second is the rounding of the result: twice its last place. With TF32, the
/// second bound also contains 2^-9 of the sum of absolute values. With 16 bits on a GPU, where an engine may round
/// intermediate sums, it also contains 2^-8 of that sum.
///
/// One verifier serves all plans of a process, and compares each pair of call and choice once. Only one thread at a
/// time may use the verifier.
class ChoiceVerifier {
 public:
  using Tell = std::function<void(const std::string& refused)>;
  explicit ChoiceVerifier(Tell tell = {}) : tell_(std::move(tell)) {}  ///< `tell` is called with each line of refused()

  /// Returns `plan` if it computes the same as our own kernel. Otherwise returns a plan with the first choice of
  /// conv2d_choices() or matmul_choices() whose results are right; our own kernel is the last choice. Waits for the
  /// context's stream, and allocates on the context's device.
  [[nodiscard]] std::shared_ptr<const ops::ConvPlan> checked(Context& context,
                                                             std::shared_ptr<const ops::ConvPlan> plan);
  [[nodiscard]] std::shared_ptr<const ops::MatmulPlan> checked(Context& context,
                                                               std::shared_ptr<const ops::MatmulPlan> plan);

  [[nodiscard]] int compared() const { return static_cast<int>(wrong_.size()); }  ///< compared pairs of call and choice
  [[nodiscard]] double seconds() const { return seconds_; }                       ///< time that all comparisons took
  /// Returns the errors that were found, one line each: "conv2d forward f32 ...: onednn:nhwc (jit:avx2): element 5 is
  /// 3, expected 4 ...".
  [[nodiscard]] const std::vector<std::string>& refused() const { return refused_; }

  /// Returns a verifier that writes to standard error if the environment has LOCKSTEP_VERIFY=1. Returns nullptr if the
  /// variable is 0, empty or not set. Throws UsageError for another value.
  [[nodiscard]] static std::shared_ptr<ChoiceVerifier> from_environment();

 private:
  template <class Plan>
  std::shared_ptr<const Plan> first_right(Context& context, std::shared_ptr<const Plan> plan);
  Tell tell_;
  std::map<std::string, std::string> wrong_;  ///< error text of each compared call and choice; empty: no error
  std::vector<std::string> refused_;
  double seconds_ = 0;
};

}  // namespace lockstep::nn

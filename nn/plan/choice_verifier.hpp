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

/// Compares the library calls of a plan (PlanOptions::verifier) with our own kernels before the first step. A library's
/// implementation is wrong for a shape if a result differs by more than rounding, or if a call overwrites a guard byte.
///
/// Each call runs on random operands, and guard bytes surround each operand. On the host, the call runs a second time
/// with one thread. To save time, the verifier makes calls smaller: it reduces the batch of a convolution, and the
/// sizes batch, m and k of a matrix product. It takes the smallest sizes for which the library chooses the same
/// implementation (ConvPlan::implementation()). So the verifier misses faults that only larger sizes show. NormTrial
/// compares the convolutions that also compute a norm's sums (ConvPlan::serves_norm()).
///
/// A difference is an error if it exceeds the sum of two bounds. The first bound is four times the largest possible
/// rounding error of an f32 sum with the call's number of terms, in any order. The second bound is the rounding of the
/// result: two units in its last place. TF32 adds 2^-9 of the sum of the terms' absolute values to these bounds. A
/// 16-bit type on a GPU adds 2^-8 of the same sum, because a library may round intermediate sums.
///
/// One verifier serves all plans of a process, and compares each pair of call and choice once. Only one thread at a
/// time may use the verifier.
class ChoiceVerifier {
 public:
  using Tell = std::function<void(const std::string& refused)>;
  explicit ChoiceVerifier(Tell tell = {}) : tell_(std::move(tell)) {}  ///< tell(line) is called for each new error

  /// Returns `plan` if its results agree with our own kernel. Otherwise returns a plan with the first choice of
  /// conv2d_choices() or matmul_choices() whose results are right. Our own kernel is the last of these choices. Waits
  /// for the context's stream, and allocates on the context's device.
  [[nodiscard]] std::shared_ptr<const ops::ConvPlan> checked(Context& context,
                                                             std::shared_ptr<const ops::ConvPlan> plan);
  [[nodiscard]] std::shared_ptr<const ops::MatmulPlan> checked(Context& context,
                                                               std::shared_ptr<const ops::MatmulPlan> plan);

  [[nodiscard]] int compared() const { return static_cast<int>(wrong_.size()); }  ///< compared pairs of call and choice
  [[nodiscard]] double seconds() const { return seconds_; }
  /// Returns the errors that were found, one line each, for example "conv2d forward f32 ...: onednn:nhwc (jit:avx2):
  /// element 5 is 3, expected 4 ...".
  [[nodiscard]] const std::vector<std::string>& refused() const { return refused_; }

  /// Returns a verifier that writes to standard error if the environment has LOCKSTEP_VERIFY=1. Returns nullptr if the
  /// variable is 0, empty or not set. Throws UsageError for another value.
  [[nodiscard]] static std::shared_ptr<ChoiceVerifier> from_environment();

 private:
  template <class Plan>
  std::shared_ptr<const Plan> first_right(Context& context, std::shared_ptr<const Plan> plan);
  Tell tell_;
  /// Maps each compared pair of call and choice to its error; empty text: no error.
  std::map<std::string, std::string> wrong_;
  std::vector<std::string> refused_;
  double seconds_ = 0;
};

}  // namespace lockstep::nn

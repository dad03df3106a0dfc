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

/// Compares the calls of libraries in a plan (PlanOptions::verifier) with our own kernels before the first step. A
/// library's implementation that is wrong for a shape shows as a number that is wrong beyond roundings, or as a guard
/// byte that has changed.
///
/// Each call runs on random numbers between guard bytes: with the context's threads and, on the host, with one thread.
/// The batch (of a product rows and terms) is the smallest one for which the library chooses the same implementation
/// (ConvPlan::implementation()), so that a fault that needs a larger batch stays unseen. Passes that serve a norm
/// (ConvPlan::serves_norm()) are compared as NormTrial compares them. A difference counts when it is larger than four
/// times what f32 sums of so many terms in any order may give, and the roundings of the result: twice its last place in
/// 16 bits, 2^-9 of the sum of absolute values with TF32, and 2^-8 of that with 16 bits on a GPU, where an engine may
/// round on the way.
///
/// One verifier serves all plans of a process; each call and choice is compared once. Not for two threads at a time.
class ChoiceVerifier {
 public:
  using Tell = std::function<void(const std::string& refused)>;
  explicit ChoiceVerifier(Tell tell = {}) : tell_(std::move(tell)) {}  ///< tell: hears of each line of refused()

  /// `plan`, if it computes what our own kernel does; else a plan of the first other choice of conv2d_choices() that
  /// does. Our own kernel is the last of these. Waits for the context's stream; allocates on its device.
  [[nodiscard]] std::shared_ptr<const ops::ConvPlan> checked(Context& context,
                                                             std::shared_ptr<const ops::ConvPlan> plan);
  [[nodiscard]] std::shared_ptr<const ops::MatmulPlan> checked(Context& context,
                                                               std::shared_ptr<const ops::MatmulPlan> plan);

  [[nodiscard]] int compared() const { return static_cast<int>(wrong_.size()); }  ///< calls and choices
  [[nodiscard]] double seconds() const { return seconds_; }                       ///< spent
  /// What was found, one line each: "conv2d forward f32 ...: onednn:nhwc (jit:avx2): element 5 is 3, expected 4 ...".
  [[nodiscard]] const std::vector<std::string>& refused() const { return refused_; }

  /// A verifier that tells standard error, when the environment has LOCKSTEP_VERIFY=1; none when it has 0 or nothing;
  /// else UsageError.
  [[nodiscard]] static std::shared_ptr<ChoiceVerifier> from_environment();

 private:
  template <class Plan>
  std::shared_ptr<const Plan> first_right(Context& context, std::shared_ptr<const Plan> plan);
  Tell tell_;
  std::map<std::string, std::string> wrong_;  ///< by call and choice: what is wrong, or an empty text
  std::vector<std::string> refused_;
  double seconds_ = 0;
};

}  // namespace lockstep::nn

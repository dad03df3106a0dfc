#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::testing {

/// A tensor on which a scalar function depends. `values` (f64, host, contiguous) are changed and restored during the
/// check. `gradient` is the gradient that the code under test computed for them (same shape, any type).
struct GradientPair {
  std::string name;
  TensorView values;
  TensorView gradient;
};

/// Compares analytic gradients with central differences of `function`, which must evaluate the scalar from the current
/// values of all tensors. Returns the largest relative error of a tensor's gradient, ||analytic - numeric|| /
/// ||numeric||
/// (||analytic|| if the numeric gradient is all zero); infinity on NaN.
///
/// The step for an element x is h * max(1, |x|). If a tensor has more than max_elements elements, only max_elements of
/// them are compared, drawn with `seed`.
///
/// A test should expect an error of at most 1e-7, and, as a negative control with one gradient perturbed, an error
/// above 1e-3. On smooth functions in f64, h = 1e-5 gives an error of about 1e-9. The distance of each value from a
/// kink of the function must be larger than the step.
[[nodiscard]] double gradient_error(const std::function<double()>& function, std::span<const GradientPair> tensors,
                                    double h = 1e-5, std::int64_t max_elements = 200, std::uint64_t seed = 1);

/// Returns sum_i weights_i * out_i. This turns a tensor into a scalar whose gradient with respect to `out` is
/// `weights`. Both tensors are on the host and may have any types.
[[nodiscard]] double weighted_sum(const TensorView& out, const TensorView& weights);

}  // namespace lockstep::testing

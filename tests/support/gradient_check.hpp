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

/// Compares analytic gradients with central differences of `function`, which evaluates the scalar from the current
/// values of all tensors. The step is h * max(1, |x|). Of tensors with more than max_elements only some elements are
/// compared, drawn with `seed`. Returns the largest ||analytic - numeric|| / ||numeric|| of a tensor (||analytic|| when
/// the numeric gradient is all zero); infinity on NaN. A test expects gradient_error(f, pairs) <= 1e-7 and, as negative
/// control with one gradient perturbed, > 1e-3. f64 with h = 1e-5 reaches about 1e-9 on smooth functions; keep values
/// away from kinks by more than h.
[[nodiscard]] double gradient_error(const std::function<double()>& function, std::span<const GradientPair> tensors,
                                    double h = 1e-5, std::int64_t max_elements = 200, std::uint64_t seed = 1);

/// Returns sum_i weights_i * out_i. This turns a tensor into a scalar whose gradient with respect to `out` is
/// `weights`. Host, any types.
[[nodiscard]] double weighted_sum(const TensorView& out, const TensorView& weights);

}  // namespace lockstep::testing

#include <lockstep/kernels/batch_norm_given.hpp>

#include <string_view>

#include <lockstep/kernels/detail/batch_norm_checks.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

using namespace batch_norm;

void batch_norm_coefficients_given(Context& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_coefficients_given";
  require_on(
      context.device(), kOp,
      {&x, &valid, &sums, &shift, &weight, &bias, &stats, &running_mean, &running_var, &coefficients, &workspace});
  check_input(kOp, x);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  const DType parameters = accumulation_dtype(x.dtype);
  require_tensor(kOp, {sums, "sums"}, parameters, Shape{2, x.shape.back()});
  require_tensor(kOp, {shift, "shift"}, parameters, Shape{x.shape.back()});
  require_tensor(kOp, {stats, "stats"}, parameters, Shape{2 * x.shape.back() + 1});
  check_finalize(kOp, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
  check_workspace(kOp, context, x, workspace);
  check_apart(kOp,
              {{stats, "stats"},
               {running_mean, "running_mean"},
               {running_var, "running_var"},
               {coefficients, "coefficients"},
               {workspace, "workspace"}},
              {{x, "x"}, {valid, "valid"}, {sums, "sums"}, {shift, "shift"}, {weight, "weight"}, {bias, "bias"}},
              {&shift});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_coefficients_given, x, valid, sums, shift, weight, bias, epsilon, momentum,
                            stats, running_mean, running_var, coefficients, workspace));
}

void batch_norm_gradients_given(Context& context, const TensorView& sum_g, const TensorView& sum_gx, GradMode mode,
                                const TensorView& sums, const TensorView& dweight, const TensorView& dbias) {
  constexpr std::string_view kOp = "batch_norm_gradients_given";
  require_on(context.device(), kOp, {&sum_g, &sum_gx, &sums, &dweight, &dbias});
  check_parameters(kOp, {sum_g, "sum_g"});
  require<ShapeError>(sum_g.shape.rank() == 1 && sum_g.shape[0] >= 1, kOp, ": sum_g is ", sum_g.shape,
                      ", expected (C)");
  require_tensor(kOp, {sum_g, "sum_g"}, sum_g.dtype, sum_g.shape);
  require_tensor(kOp, {sum_gx, "sum_gx"}, sum_g.dtype, sum_g.shape);
  require_tensor(kOp, {sums, "sums"}, sum_g.dtype, Shape{2, sum_g.shape[0]});
  check_gradients(kOp, mode, dweight, dbias, sum_g);
  const TensorView none;
  check_apart(kOp,
              {{sums, "sums"},
               {mode == GradMode::ignore ? none : dweight, "dweight"},
               {mode == GradMode::ignore ? none : dbias, "dbias"}},
              {{sum_g, "sum_g"}, {sum_gx, "sum_gx"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_gradients_given, sum_g, sum_gx, mode, sums, dweight, dbias));
}

}  // namespace lockstep::ops

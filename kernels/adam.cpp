#include <lockstep/kernels/adam.hpp>

#include <cmath>

namespace lockstep::ops {

void require_adam_options(std::string_view op, const AdamOptions& options, DType dtype) {
  for (const double beta : {options.beta1, options.beta2}) {
    require<UsageError>(beta >= 0 && beta < 1, op, ": betas are ", options.beta1, " and ", options.beta2,
                        ", expected at least 0 and below 1");
  }
  const double rounded =
      dtype == DType::f64 ? options.epsilon : static_cast<double>(static_cast<float>(options.epsilon));
  require<UsageError>(std::isfinite(rounded) && rounded > 0, op, ": epsilon is ", options.epsilon,
                      ", expected a number above 0 in ", dtype);
}

void adam_update(Context& context, const AdamOptions& options, const ArenaUpdate& update, const TensorView& step,
                 const TensorView& first_moment, const TensorView& second_moment) {
  constexpr std::string_view kOp = "adam_update";
  require_on(context.device(), kOp, {&step});
  require<ShapeError>(step.given() && step.numel() == 1, kOp, ": step is ", step.shape, ", expected a scalar");
  require<DTypeError>(step.dtype == DType::i64, kOp, ": step is ", step.dtype, ", expected i64");
  require_arena_update(context, kOp, update, {{first_moment, "first_moment"}, {second_moment, "second_moment"}});
  for (const TensorView* view : {&update.parameters, &update.gradients, &update.copy, &first_moment, &second_moment}) {
    require<ShapeError>(!overlaps(*view, step), kOp, ": a tensor overlaps step, expected memory of its own for each");
  }
  require<UsageError>(first_moment.given() && second_moment.given(), kOp, ": a moment is not given, expected a tensor");
  require_adam_options(kOp, options, update.parameters.dtype);
  dispatch(context, kOp, LOCKSTEP_BACKEND(adam_update, options, update, step, first_moment, second_moment));
}

}  // namespace lockstep::ops

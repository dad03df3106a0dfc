#include <lockstep/kernels/sgd.hpp>

#include <cmath>
#include <limits>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "sgd_update";

void check_segments(std::span<const ArenaSegment> segments) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const ArenaSegment& s = segments[i];
    require<ShapeError>(
        s.count >= 0 && s.offset >= end && s.count <= std::numeric_limits<std::int64_t>::max() - s.offset, kOp,
        ": segment ", i, " has offset ", s.offset, " and count ", s.count,
        ", expected sorted segments that do not overlap");
    require<UsageError>(std::isfinite(s.learning_rate_scale) && std::isfinite(s.weight_decay), kOp, ": segment ", i,
                        " has learning_rate_scale ", s.learning_rate_scale, " and weight_decay ", s.weight_decay,
                        ", expected finite numbers");
    end = s.offset + s.count;
  }
}

}  // namespace

void sgd_update(Context& context, const SgdOptions& options, std::span<const ArenaSegment> segments, std::int64_t begin,
                const TensorView& learning_rate, const TensorView& parameters, const TensorView& gradients,
                const TensorView& velocity) {
  require_on(context.device(), kOp, {&learning_rate, &parameters, &gradients, &velocity});
  require<UsageError>(options.momentum >= 0 && options.momentum < 1, kOp, ": momentum is ", options.momentum,
                      ", expected [0, 1)");
  require<UsageError>(!options.nesterov || options.momentum > 0, kOp, ": nesterov without momentum");
  require<UsageError>(options.momentum == 0 || velocity.given(), kOp, ": momentum is ", options.momentum,
                      ", but velocity is not given");
  require<ShapeError>(learning_rate.given() && learning_rate.numel() == 1, kOp, ": learning_rate is ",
                      learning_rate.shape, ", expected a scalar");
  require<DTypeError>(learning_rate.dtype == DType::f64, kOp, ": learning_rate is ", learning_rate.dtype,
                      ", expected f64");
  require_compute_dtype(kOp, "parameters", parameters);
  require<DTypeError>(parameters.dtype == accumulation_dtype(parameters.dtype), kOp, ": parameters are ",
                      parameters.dtype, ", expected ", accumulation_dtype(parameters.dtype));
  require<ShapeError>(parameters.shape.rank() == 1, kOp, ": parameters are ", parameters.shape, ", expected (n)");
  for (const TensorView* view : {&parameters, &gradients, &velocity}) {
    if (view == &velocity && !velocity.given()) {
      continue;
    }
    require<DTypeError>(view->dtype == parameters.dtype, kOp, ": types are ", parameters.dtype, " and ", view->dtype,
                        ", expected one type");
    require<ShapeError>(view->shape == parameters.shape, kOp, ": shapes are ", parameters.shape, " and ", view->shape,
                        ", expected one shape");
    require<ShapeError>(view->is_contiguous(), kOp, ": a tensor ", view->shape, " with strides ", view->strides,
                        ", expected contiguous tensors");
    require<ShapeError>(!overlaps(*view, learning_rate), kOp, ": a tensor overlaps learning_rate");
  }
  require<ShapeError>(!overlaps(parameters, gradients), kOp, ": parameters and gradients overlap");
  require<ShapeError>(!velocity.given() || (!overlaps(velocity, parameters) && !overlaps(velocity, gradients)), kOp,
                      ": velocity overlaps parameters or gradients");
  require<ShapeError>(begin >= 0 && begin <= std::numeric_limits<std::int64_t>::max() - parameters.numel(), kOp,
                      ": begin is ", begin, ", expected the place of ", parameters.numel(), " elements in an arena");
  check_segments(segments);
  dispatch(context, kOp,
           [=](auto& c) -> decltype(backend::sgd_update(c, options, segments, begin, learning_rate, parameters,
                                                        gradients, velocity)) {
             backend::sgd_update(c, options, segments, begin, learning_rate, parameters, gradients, velocity);
           });
}

}  // namespace lockstep::ops

#include <lockstep/kernels/arena.hpp>

#include <array>
#include <cmath>
#include <limits>

namespace lockstep::ops {
namespace {

void check_segments(std::string_view op, std::span<const ArenaSegment> segments) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const ArenaSegment& s = segments[i];
    require<ShapeError>(
        s.count >= 0 && s.offset >= end && s.count <= std::numeric_limits<std::int64_t>::max() - s.offset, op,
        ": segment ", i, " has offset ", s.offset, " and count ", s.count,
        ", expected sorted segments that do not overlap");
    require<UsageError>(std::isfinite(s.learning_rate_scale) && std::isfinite(s.weight_decay), op, ": segment ", i,
                        " has learning_rate_scale ", s.learning_rate_scale, " and weight_decay ", s.weight_decay,
                        ", expected finite numbers");
    end = s.offset + s.count;
  }
}

[[nodiscard]] bool is_half(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

void check_types(std::string_view op, const ArenaUpdate& update) {
  const TensorView& parameters = update.parameters;
  require_compute_dtype(op, "parameters", parameters);
  require<DTypeError>(!is_half(parameters.dtype), op, ": parameters are ", parameters.dtype, ", expected ",
                      accumulation_dtype(parameters.dtype));
  const bool f32 = parameters.dtype == DType::f32;
  const DType gradients = update.gradients.dtype;
  require<DTypeError>(gradients == parameters.dtype || (f32 && is_half(gradients)), op, ": gradients are ", gradients,
                      ", expected ", parameters.dtype, f32 ? ", bf16 or f16" : "");
  if (update.copy.given()) {
    const DType copy = update.copy.dtype;
    require<DTypeError>(f32 && is_half(copy) && (!is_half(gradients) || gradients == copy), op, ": copy is ", copy,
                        " with parameters of ", parameters.dtype, " and gradients of ", gradients,
                        ", expected bf16 or f16 with f32, and the type of 16-bit gradients");
  }
}

}  // namespace

void require_arena_update(const Context& context, std::string_view op, const ArenaUpdate& update,
                          std::initializer_list<Operand> states) {
  const TensorView& parameters = update.parameters;
  const std::array<Operand, 3> scalars{
      {{update.learning_rate, "learning_rate"}, {update.factor, "factor"}, {update.skip, "skip"}}};
  const std::array<Operand, 3> tensors{
      {{parameters, "parameters"}, {update.gradients, "gradients"}, {update.copy, "copy"}}};
  const auto for_each = [&](auto&& f) {
    for (const Operand& operand : tensors) {
      f(operand);
    }
    for (const Operand& operand : states) {
      f(operand);
    }
  };
  for (const Operand& scalar : scalars) {
    require_on(context.device(), op, {&scalar.view});
  }
  for_each([&](const Operand& operand) { require_on(context.device(), op, {&operand.view}); });

  require<ShapeError>(update.learning_rate.given(), op, ": learning_rate is not given, expected a tensor");
  for (const auto& [view, name] : scalars) {
    require<ShapeError>(!view.given() || view.numel() == 1, op, ": ", name, " is ", view.shape, ", expected a scalar");
  }
  require<DTypeError>(update.learning_rate.dtype == DType::f64, op, ": learning_rate is ", update.learning_rate.dtype,
                      ", expected f64");
  require<DTypeError>(!update.factor.given() || update.factor.dtype == parameters.dtype, op, ": factor is ",
                      update.factor.dtype, ", expected ", parameters.dtype);
  require<DTypeError>(!update.skip.given() || update.skip.dtype == DType::i32, op, ": skip is ", update.skip.dtype,
                      ", expected i32");
  check_types(op, update);
  require<ShapeError>(parameters.shape.rank() == 1, op, ": parameters are ", parameters.shape, ", expected (n)");
  require<ShapeError>(update.gradients.given(), op, ": gradients are not given, expected a tensor");
  for (const Operand& state : states) {
    require<DTypeError>(!state.view.given() || state.view.dtype == parameters.dtype, op, ": ", state.name, " is ",
                        state.view.dtype, ", expected ", parameters.dtype);
  }
  for_each([&](const Operand& a) {
    if (!a.view.given()) {
      return;
    }
    require<ShapeError>(a.view.shape == parameters.shape, op, ": ", a.name, " is ", a.view.shape, ", expected ",
                        parameters.shape);
    require<ShapeError>(a.view.is_contiguous(), op, ": ", a.name, " ", a.view.shape, " with strides ", a.view.strides,
                        " is not contiguous, expected a contiguous tensor");
    for (const auto& [scalar, name] : scalars) {
      require<ShapeError>(!overlaps(a.view, scalar), op, ": ", a.name, " overlaps ", name,
                          ", expected memory of its own for each");
    }
    for_each([&](const Operand& b) {
      require<ShapeError>(&a.view == &b.view || !overlaps(a.view, b.view), op, ": ", a.name, " overlaps ", b.name,
                          ", expected memory of its own for each");
    });
  });
  require<ShapeError>(
      update.begin >= 0 && update.begin <= std::numeric_limits<std::int64_t>::max() - parameters.numel(), op,
      ": begin is ", update.begin, ", expected at least 0 and room for ", parameters.numel(),
      " elements from there on");
  require<UsageError>(std::isfinite(update.clip_value) && update.clip_value >= 0, op, ": clip_value is ",
                      update.clip_value, ", expected a number of at least 0");
  check_segments(op, update.segments);
}

}  // namespace lockstep::ops

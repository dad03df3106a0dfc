#pragma once

#include <cstdint>
#include <span>

#include <lockstep/nn/step/batch.hpp>
#include <lockstep/nn/step/step_state.hpp>
#include <lockstep/runtime/stream/context.hpp>

namespace lockstep::nn {

/// The one way in: copies a field of a batch to samples [first, first + n) of the step state, enqueued on the context's
/// stream. n is the number of samples in the view. Axes are brought into the model's order, numbers converted to the
/// type of the field (runtime's copy()), and the padding of the last axis is left alone. What the view shows must stay
/// as it is until the copy has read it, as copy() says.
///
/// ShapeError, in the terms of the model, when axes or extents do not fit it ("the input has 3 features, model mlp
/// takes 4"), when there is no room for the samples, or when the model has no such field. DeviceError for memory of
/// another device.
void ingest(Context& context, const StepState& state, const FieldView& from, std::int64_t first = 0);

/// The number of samples in the view, after the same checks.
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, const FieldView& from);

/// The number of samples of a batch. UsageError when the model needs a field that is not there, or a field is given
/// twice; ShapeError when fields hold different numbers of samples. needs_answers: labels or targets must be there,
/// too, and weights where the layout has them.
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, std::span<const FieldView> fields, bool needs_answers);

/// Throws what emit() throws for a view that does not fit the output of `samples` samples.
void require_output(const StepLayout& layout, const FieldView& to, std::int64_t samples);

/// The way out: copies `rows` (n, output shape) to a view of the caller's with the output's logical shape, with axes as
/// above. ShapeError as above; n is the number of samples in the view.
void emit(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to);

}  // namespace lockstep::nn

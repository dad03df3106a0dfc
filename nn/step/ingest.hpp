#pragma once

#include <cstdint>
#include <span>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep::nn {

/// Enqueues, on the context's stream, the copy of a batch's field to samples [first, first + n) of the step state. n is
/// the number of samples in the view `from`. Every batch enters a step through this function. The copy brings axes into
/// the model's order and converts numbers to the field's type (runtime's copy()). The padding of the last axis does not
/// change. The view's memory must not change until the copy has read it, as copy() describes.
///
/// ShapeError, in the model's terms, if axes or extents do not fit the model ("the input has 3 features, model mlp
/// takes 4"), if there is no room for the samples, or if the model lacks the field. DeviceError for another device's
/// memory.
void ingest(Context& context, const StepState& state, const FieldView& from, std::int64_t first = 0);

/// Returns the number of samples in the view `from`. Throws the errors of ingest().
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, const FieldView& from);

/// Returns the number of samples in a batch. UsageError if a field that the model needs is missing or a field is given
/// twice. ShapeError if fields hold different numbers of samples. If needs_answers, labels or targets are also needed,
/// and weights if the layout has them.
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, std::span<const FieldView> fields, bool needs_answers);

/// Throws the errors of emit() if the view `to` does not fit an output of `samples` samples.
void require_output(const StepLayout& layout, const FieldView& to, std::int64_t samples);

/// Throws the errors of emit_input() if the view `to` does not fit an input of `samples` samples.
void require_input(const StepLayout& layout, const FieldView& to, std::int64_t samples);

/// Copies `rows` (samples, stored input shape), numbers for each element of an input, to the caller's view `to` with
/// the input's logical shape, as emit() does.
void emit_input(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to);

/// Copies the outputs `rows` (samples, output shape) to the caller's view `to` with the output's logical shape and axes
/// as in ingest(). Every output leaves through this function. ShapeError as in ingest(), and for other numbers of
/// samples.
void emit(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to);

}  // namespace lockstep::nn

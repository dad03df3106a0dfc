#pragma once

#include <cstdint>
#include <span>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep::nn {

/// Enqueues on the context's stream the copy of one field of a batch to samples [first, first + n) of `state`. n is the
/// number of samples in the view `from`. The copy permutes axes into the model's order and converts numbers to the
/// field's type, as copy() does. The padding of the last axis keeps its contents. The caller must not change the memory
/// of `from` until the copy has read it (see copy()).
///
/// Throws ShapeError if axes or extents do not fit the model (text: "the input has 3 features, model mlp takes 4"), if
/// `state` has too few samples left, or if the model lacks the field. Throws DeviceError for memory on another device.
void ingest(Context& context, const StepState& state, const FieldView& from, std::int64_t first = 0);

/// Returns the number of samples in the view `from`. Throws the errors of ingest().
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, const FieldView& from);

/// Returns the number of samples in a batch. Throws UsageError if a field that the model needs is missing, or if a
/// field is given twice. Throws ShapeError if fields hold different numbers of samples. If needs_answers is true, the
/// model also needs the fields of the loss: labels or targets, and weights if the layout has them.
[[nodiscard]] std::int64_t samples_of(const StepLayout& layout, std::span<const FieldView> fields, bool needs_answers);

/// Throws the errors of emit() if the view `to` does not fit an output of `samples` samples.
void require_output(const StepLayout& layout, const FieldView& to, std::int64_t samples);

/// Throws the errors of emit_input() if the view `to` does not fit an input of `samples` samples.
void require_input(const StepLayout& layout, const FieldView& to, std::int64_t samples);

/// Copies `rows` of shape (samples, stored input shape) to the caller's view `to`, as emit() does. `rows` has one
/// number for each element of the input, for example the element's gradient. `to` has the input's logical shape.
void emit_input(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to);

/// Copies the outputs `rows` of shape (samples, output shape) to the caller's view `to`. `to` has the output's logical
/// shape, with axes as in ingest(). Throws ShapeError as ingest() does, and if `to` has another number of samples.
void emit(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to);

}  // namespace lockstep::nn

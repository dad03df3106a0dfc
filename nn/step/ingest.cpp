#include <lockstep/nn/step/ingest.hpp>

#include <algorithm>
#include <array>

#include <lockstep/nn/batch/copy_across.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

/// Returns the letters of a batch's axes: 'n' for samples, then the axes of one sample, channels last.
std::string_view letters_of(int sample_rank, const std::string& where) {
  constexpr std::array<std::string_view, 5> kLetters{"n", "nc", "ntc", "nhwc", "ndhwc"};
  require<ShapeError>(sample_rank <= 4, where, " has ", sample_rank, " axes a sample, expected at most 4");
  return kLetters[static_cast<std::size_t>(sample_rank)];
}

/// Logical shape of a field: a letter for each axis, and the extents of one sample.
struct FieldShape {
  std::string_view axes;  ///< one letter per axis, beginning with 'n'
  Shape sample;           ///< extents of all axes except 'n'
  const char* noun;       ///< name of the field in error texts
};

FieldShape shape_of_output(const StepLayout& layout, const char* noun = "the output") {
  return {letters_of(layout.output.rank(), "the output"), layout.output, noun};
}

FieldShape shape_of_label(const StepLayout& layout, const char* noun = "the label") {
  const std::string_view all = letters_of(layout.output.rank(), "the output");
  return {all.substr(0, all.size() - 1), positions_of(layout.output), noun};
}

FieldShape shape_of(const StepLayout& layout, StateField field) {
  const auto refuse = [&](bool there, const char* what) {
    require<ShapeError>(there, "model ", layout.model, " takes no ", what);
  };
  const bool input = field == StateField::images || field == StateField::values || field == StateField::tokens;
  require<ShapeError>(!input || field == input_field(layout.input_kind), "model ", layout.model, " takes no ",
                      name_of(field), ", expected ", name_of(input_field(layout.input_kind)), " as its input");
  switch (field) {
    case StateField::sample_ids:
      return {"n", {}, "the sample ids"};
    case StateField::images:
      return {"nhwc", layout.input, "the image"};
    case StateField::values:
      return {letters_of(layout.input.rank(), "the input"), layout.input, "the input"};
    case StateField::tokens:
      return {"nt", layout.input, "the input"};
    case StateField::labels:
      refuse(!layout.regression, "labels: its loss compares numbers, with targets");
      return shape_of_label(layout);
    case StateField::targets:
      refuse(layout.regression, "targets: its loss is over classes, with labels");
      return shape_of_output(layout, "the target");
    case StateField::weights:
      refuse(layout.weights != LossWeights::none, "weights: it is planned without (PlanOptions::weights)");
      if (layout.weights != LossWeights::element) {
        return {"n", {}, "the weight"};
      }
      return layout.regression ? shape_of_output(layout, "the weight") : shape_of_label(layout, "the weight");
    case StateField::other_labels:
    case StateField::shares:
    case StateField::other_shares:
      require<ShapeError>(layout.two_labels, "model ", layout.model, " takes no ", name_of(field),
                          ", expected a training plan with PlanOptions::two_labels");
      return field == StateField::other_labels ? shape_of_label(layout) : FieldShape{"n", {}, "the share of a label"};
    default:
      throw UsageError(concat("a batch has no field '", name_of(field), "', expected a field of samples"));
  }
}

std::string_view words_of(char letter, const FieldShape& shape) {
  if (letter == 'c') {
    return shape.sample.rank() == 1 ? "features" : "channels";
  }
  return letter == 'd' ? "planes" : letter == 'h' ? "rows" : letter == 'w' ? "columns" : "positions";
}

struct Fitted {
  std::int64_t samples = 1;
  std::string_view axes;
};

/// Checks that the caller's view `given` has the axes and extents that the model expects of the field.
Fitted fit(const StepLayout& layout, const FieldShape& shape, const FieldView& given) {
  const TensorView& view = given.view;
  require<ShapeError>(view.given(), shape.noun, " is missing, expected a view of memory");
  Fitted fitted{.samples = 1, .axes = given.axes.empty() ? shape.axes : std::string_view(given.axes)};
  const std::string_view axes = fitted.axes;
  require<ShapeError>(static_cast<int>(axes.size()) == view.shape.rank(), shape.noun, " has shape ", view.shape,
                      ", expected ", axes.size(), " axes (", axes, "), as model ", layout.model,
                      given.axes.empty() ? " counts them" : " is told");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const char letter = axes[i];
    const std::int64_t extent = view.shape[static_cast<int>(i)];
    if (letter == 'n') {
      fitted.samples *= extent;
      continue;
    }
    const std::size_t at = shape.axes.find(letter);
    require<ShapeError>(at != std::string_view::npos, shape.noun, " has an axis '", std::string(1, letter), "' (", axes,
                        "), expected an axis of ", shape.axes, " as model ", layout.model, " takes them");
    require<ShapeError>(axes.rfind(letter) == i, shape.noun, " has two axes '", std::string(1, letter), "' (", axes,
                        "), expected each axis once; only n may stand more than once");
    const std::int64_t expected = shape.sample[static_cast<int>(at) - 1];
    require<ShapeError>(extent == expected, shape.noun, " has ", extent, " ", words_of(letter, shape), ", model ",
                        layout.model, " takes ", expected);
  }
  for (std::size_t at = 1; at < shape.axes.size(); ++at) {
    const std::int64_t expected = shape.sample[static_cast<int>(at) - 1];
    require<ShapeError>(expected == 1 || axes.find(shape.axes[at]) != std::string_view::npos, shape.noun,
                        " has no axis '", std::string(1, shape.axes[at]), "' (", axes, "), model ", layout.model,
                        " takes ", expected, " ", words_of(shape.axes[at], shape));
  }
  return fitted;
}

Fitted fit_output(const StepLayout& layout, const FieldShape& shape, const FieldView& to, std::int64_t samples) {
  const Fitted fitted = fit(layout, shape, to);
  require<ShapeError>(fitted.samples == samples, shape.noun, " has room for ", fitted.samples, " samples, expected ",
                      samples);
  return fitted;
}

FieldShape shape_of_input_gradient(const StepLayout& layout) {
  return {letters_of(layout.input.rank(), "the input"), layout.input, "the gradient of the input"};
}

/// Returns a view of `rows` (samples, sample axes..) with the axes in the caller's order. The view does not contain the
/// padding of the last axis. If `given` has several axes 'n', their extents multiply to the number of samples.
TensorView in_order_of(const FieldShape& shape, const TensorView& rows, const FieldView& given, const Fitted& fitted) {
  TensorView ordered = rows;
  ordered.shape = given.view.shape;
  ordered.strides = given.view.shape;
  std::int64_t sample_stride = rows.strides[0];
  for (int i = given.view.shape.rank(); i-- > 0;) {
    const char letter = fitted.axes[static_cast<std::size_t>(i)];
    if (letter == 'n') {
      ordered.strides[i] = sample_stride;
      sample_stride *= given.view.shape[i];
    } else {
      ordered.strides[i] = rows.strides[static_cast<int>(shape.axes.find(letter))];
    }
  }
  return ordered;
}

void emit_as(Context& context, const StepLayout& layout, const FieldShape& shape, const TensorView& rows,
             const FieldView& to) {
  const Fitted fitted = fit_output(layout, shape, to, rows.shape[0]);
  if (fitted.samples > 0) {
    copy_across(context, in_order_of(shape, rows, to, fitted), to.view);
  }
}

}  // namespace

std::int64_t samples_of(const StepLayout& layout, const FieldView& from) {
  return fit(layout, shape_of(layout, from.field), from).samples;
}

void ingest(Context& context, const StepState& state, const FieldView& from, std::int64_t first) {
  const FieldShape shape = shape_of(state.layout(), from.field);
  const Fitted fitted = fit(state.layout(), shape, from);
  require<ShapeError>(first >= 0 && fitted.samples <= state.batch() - first, shape.noun, " has ", fitted.samples,
                      " samples, expected at most ", state.batch() - first, " of a batch of ", state.batch());
  if (fitted.samples == 0) {
    return;
  }
  TensorView rows = state.view(from.field).slice(0, first, first + fitted.samples);
  if (shape.sample.rank() > 0) {
    rows = rows.slice(rows.shape.rank() - 1, 0, shape.sample.back());
  }
  copy_across(context, from.view, in_order_of(shape, rows, from, fitted));
}

std::int64_t samples_of(const StepLayout& layout, std::span<const FieldView> fields, bool needs_answers) {
  const auto count = [&](StateField field) {
    return std::count_if(fields.begin(), fields.end(), [&](const FieldView& given) { return given.field == field; });
  };
  const auto need = [&](StateField field) {
    const bool answer = field == StateField::labels || field == StateField::targets;
    require<UsageError>(count(field) > 0, "the batch has no field '", name_of(field), "', expected it for model ",
                        layout.model, answer ? " for its loss (PlanOptions::loss)" : "");
  };
  need(input_field(layout.input_kind));
  if (needs_answers) {
    need(layout.regression ? StateField::targets : StateField::labels);
    if (layout.weights != LossWeights::none) {
      need(StateField::weights);
    }
    if (layout.two_labels) {
      need(StateField::other_labels);
      need(StateField::shares);
      need(StateField::other_shares);
    }
  }
  std::int64_t samples = -1;
  std::string_view first;
  for (const FieldView& field : fields) {
    require<UsageError>(count(field.field) == 1, "the batch has field '", name_of(field.field),
                        "' more than once, expected each field once");
    const std::int64_t here = samples_of(layout, field);
    require<ShapeError>(samples < 0 || here == samples, "the batch has ", samples, " samples in ", first, " and ", here,
                        " in ", name_of(field.field), ", expected as many in each");
    if (samples < 0) {
      samples = here;
      first = name_of(field.field);
    }
  }
  return samples;
}

void require_output(const StepLayout& layout, const FieldView& to, std::int64_t samples) {
  static_cast<void>(fit_output(layout, shape_of_output(layout), to, samples));
}

void emit(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to) {
  emit_as(context, layout, shape_of_output(layout), rows, to);
}

void require_input(const StepLayout& layout, const FieldView& to, std::int64_t samples) {
  static_cast<void>(fit_output(layout, shape_of_input_gradient(layout), to, samples));
}

void emit_input(Context& context, const StepLayout& layout, const TensorView& rows, const FieldView& to) {
  const FieldShape shape = shape_of_input_gradient(layout);
  emit_as(context, layout, shape, rows.slice(rows.shape.rank() - 1, 0, shape.sample.back()), to);
}

}  // namespace lockstep::nn
